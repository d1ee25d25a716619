"""The publications that encodings, schedules and clocks come from, by arXiv id."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One publication; ``arxiv`` is its arXiv id, empty where it has none.

    >>> print(PAPERS["2108.12409"].bibtex().splitlines()[0])
    @misc{press2021alibi,
    """

    key: str
    authors: str
    title: str
    year: int
    arxiv: str = ""
    other: tuple[tuple[str, str], ...] = ()

    def bibtex(self) -> str:
        """The BibTeX entry."""
        fields = [("title", f"{{{self.title}}}"), ("author", self.authors), ("year", str(self.year)), *self.other]
        if self.arxiv:
            fields += [("eprint", self.arxiv), ("archivePrefix", "arXiv"), ("url", f"https://arxiv.org/abs/{self.arxiv}")]
        width = max(len(name) for name, _ in fields)
        return "\n".join([f"@misc{{{self.key},", *(f"  {name:<{width}} = {{{value}}}," for name, value in fields), "}"])


_ALL = (
    Paper(
        "vaswani2017attention",
        "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N. and Kaiser, Lukasz "
        "and Polosukhin, Illia",
        "Attention Is All You Need",
        2017,
        "1706.03762",
    ),
    Paper(
        "devlin2018bert",
        "Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina",
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2018,
        "1810.04805",
    ),
    Paper(
        "raffel2019t5",
        "Raffel, Colin and Shazeer, Noam and Roberts, Adam and Lee, Katherine and Narang, Sharan and Matena, Michael and Zhou, Yanqi "
        "and Li, Wei and Liu, Peter J.",
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        2019,
        "1910.10683",
    ),
    Paper(
        "li2023fire",
        "Li, Shanda and You, Chong and Guruganesh, Guru and Ainslie, Joshua and Ontanon, Santiago and Zaheer, Manzil and Sanghai, Sumit "
        "and Yang, Yiming and Kumar, Sanjiv and Bhojanapalli, Srinadh",
        "Functional Interpolation for Relative Positions Improves Long Context Transformers",
        2023,
        "2310.04418",
    ),
    Paper(
        "golovneva2024cope",
        "Golovneva, Olga and Wang, Tianlu and Weston, Jason and Sukhbaatar, Sainbayar",
        "Contextual Position Encoding: Learning to Count What's Important",
        2024,
        "2405.18719",
    ),
    Paper(
        "gopalakrishnan2025pope",
        r"Gopalakrishnan, Anand and Csord{\'a}s, R{\'o}bert and Schmidhuber, J{\"u}rgen and Mozer, Michael C.",
        'Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
        2025,
        "2509.10534",
    ),
    Paper(
        "gu2023mamba",
        "Gu, Albert and Dao, Tri",
        "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
        2023,
        "2312.00752",
    ),
    Paper(
        "dao2024mamba2",
        "Dao, Tri and Gu, Albert",
        "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality",
        2024,
        "2405.21060",
    ),
    Paper(
        "lahoti2026mamba3",
        "Lahoti, Aakash and others",
        "Mamba-3: Improved Sequence Modeling using State Space Principles",
        2026,
        "2603.15569",
    ),
    Paper(
        "peng2024rwkv6",
        "Peng, Bo and others",
        "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence",
        2024,
        "2404.05892",
    ),
    Paper(
        "lin2025fox",
        "Lin, Zhixuan and others",
        "Forgetting Transformer: Softmax Attention with a Forget Gate",
        2025,
        "2503.02130",
    ),
    Paper(
        "movahedi2025selective",
        "Movahedi, Sajad and Carstensen, Timur and Afzal, Arshia and Hutter, Frank and Orvieto, Antonio and Cevher, Volkan",
        "Selective Rotary Position Embedding",
        2025,
        "2511.17388",
    ),
    Paper(
        "qin2023hgrn",
        "Qin, Zhen and Yang, Songlin and Zhong, Yiran",
        "Hierarchically Gated Recurrent Neural Network for Sequence Modeling",
        2023,
        "2311.04823",
    ),
    Paper("qin2024hgrn2", "Qin, Zhen and others", "HGRN2: Gated Linear RNNs with State Expansion", 2024, "2404.07904"),
    Paper(
        "qin2023transnormer",
        "Qin, Zhen and others",
        "TransNormerLLM: A Faster and Better Large Language Model with Improved TransNormer",
        2023,
        "2307.14995",
    ),
    Paper(
        "qin2024lightning",
        "Qin, Zhen and Sun, Weigao and Li, Dong and Shen, Xuyang and Sun, Weixuan and Zhong, Yiran",
        "Lightning Attention-2: A Free Lunch for Handling Unlimited Sequence Lengths in Large Language Models",
        2024,
        "2401.04658",
    ),
    Paper("li2025minimax", "Li, Aonian and others", "MiniMax-01: Scaling Foundation Models with Lightning Attention", 2025, "2501.08313"),
    Paper("veisi2025carope", "Veisi, Ali and others", "Context-aware Rotary Position Embedding", 2025, "2507.23083"),
    Paper(
        "dai2019transformerxl",
        "Dai, Zihang and Yang, Zhilin and Yang, Yiming and Carbonell, Jaime and Le, Quoc V. and Salakhutdinov, Ruslan",
        "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
        2019,
        "1901.02860",
    ),
    Paper(
        "su2021roformer",
        "Su, Jianlin and Lu, Yu and Pan, Shengfeng and Murtadha, Ahmed and Wen, Bo and Liu, Yunfeng",
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        2021,
        "2104.09864",
    ),
    Paper(
        "press2021alibi",
        "Press, Ofir and Smith, Noah A. and Lewis, Mike",
        "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        2021,
        "2108.12409",
    ),
    Paper(
        "haviv2022nope",
        "Haviv, Adi and Ram, Ori and Press, Ofir and Izsak, Peter and Levy, Omer",
        "Transformer Language Models without Positional Encodings Still Learn Positional Information",
        2022,
        "2203.16634",
    ),
    Paper(
        "chi2022kerple",
        "Chi, Ta-Chung and Fan, Ting-Han and Ramadge, Peter J. and Rudnicky, Alexander I.",
        "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
        2022,
        "2205.09921",
    ),
    Paper(
        "chi2022sandwich",
        "Chi, Ta-Chung and Fan, Ting-Han and Rudnicky, Alexander I. and Ramadge, Peter J.",
        "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
        2022,
        "2212.10356",
    ),
    Paper(
        "sun2022xpos",
        "Sun, Yutao and Dong, Li and Patra, Barun and Ma, Shuming and Huang, Shaohan and Benhaim, Alon and Chaudhary, Vishrav "
        "and Song, Xia and Wei, Furu",
        "A Length-Extrapolatable Transformer",
        2022,
        "2212.10554",
    ),
    Paper(
        "kazemnejad2023impact",
        "Kazemnejad, Amirhossein and Padhi, Inkit and Natesan Ramamurthy, Karthikeyan and Das, Payel and Reddy, Siva",
        "The Impact of Positional Encoding on Length Generalization in Transformers",
        2023,
        "2305.19466",
    ),
    Paper(
        "chen2023interpolation",
        "Chen, Shouyuan and Wong, Sherman and Chen, Liangjian and Tian, Yuandong",
        "Extending Context Window of Large Language Models via Positional Interpolation",
        2023,
        "2306.15595",
    ),
    Paper(
        "peng2023yarn",
        "Peng, Bowen and Quesnelle, Jeffrey and Fan, Honglu and Shippole, Enrico",
        "YaRN: Efficient Context Window Extension of Large Language Models",
        2023,
        "2309.00071",
    ),
    Paper(
        "ding2024longrope",
        "Ding, Yiran and Zhang, Li Lyna and Zhang, Chengruidong and Xu, Yuanyuan and Shang, Ning and Xu, Jiahang and Yang, Fan "
        "and Yang, Mao",
        "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
        2024,
        "2402.13753",
    ),
    Paper(
        "wang2024resonance",
        "Wang, Suyuchen and Kobyzev, Ivan and Lu, Peng and Rezagholizadeh, Mehdi and Liu, Bang",
        "Resonance RoPE: Improving Context Length Generalization of Large Language Models",
        2024,
        "2403.00071",
    ),
    Paper("grattafiori2024llama3", "Grattafiori, Aaron and others", "The Llama 3 Herd of Models", 2024, "2407.21783"),
    Paper(
        "gelberg2025drope",
        "Gelberg, Yoav and Eguchi, Koshi and Akiba, Takuya and Cetin, Edoardo",
        "Extending the Context of Pretrained LLMs by Dropping Their Positional Embeddings",
        2025,
        "2512.12167",
    ),
    Paper(
        "sun2023retnet",
        "Sun, Yutao and Dong, Li and Huang, Shaohan and Ma, Shuming and Xia, Yuqing and Xue, Jilong and Wang, Jianyong and Wei, Furu",
        "Retentive Network: A Successor to Transformer for Large Language Models",
        2023,
        "2307.08621",
    ),
    Paper(
        "yang2023gla",
        "Yang, Songlin and Wang, Bailin and Shen, Yikang and Panda, Rameswar and Kim, Yoon",
        "Gated Linear Attention Transformers with Hardware-Efficient Training",
        2023,
        "2312.06635",
    ),
    Paper(
        "heo2024ropevit",
        "Heo, Byeongho and Park, Song and Han, Dongyoon and Yun, Sangdoo",
        "Rotary Position Embedding for Vision Transformer",
        2024,
        "2403.13298",
    ),
    Paper(
        "wang2024qwen2vl",
        "Wang, Peng and others",
        "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution",
        2024,
        "2409.12191",
    ),
    Paper(
        "barbero2024round",
        r"Barbero, Federico and Vitvitskyi, Alex and Perivolaropoulos, Christos and Pascanu, Razvan and Veli{\v{c}}kovi{\'c}, Petar",
        "Round and Round We Go! What makes Rotary Positional Encodings useful?",
        2024,
        "2410.06205",
    ),
    Paper(
        "schenck2025string",
        "Schenck, Connor and others",
        "Learning the RoPEs: Better 2D and 3D Position Encodings with STRING",
        2025,
        "2502.02562",
    ),
    Paper(
        "dai2025hope",
        "Dai, Chang and Shan, Hongyu and Song, Mingyang and Liang, Di",
        "HoPE: Hyperbolic Rotary Positional Encoding for Stable Long-Range Dependency Modeling in Large Language Models",
        2025,
        "2509.05218",
    ),
    Paper(
        "zhang2025grape",
        "Zhang, Yifan and Chen, Zixiang and Liu, Yifeng and Qin, Zhen and Yuan, Huizhuo and Xu, Kangping and Yuan, Yang and Gu, Quanquan "
        "and Yao, Andrew Chi-Chih",
        "Group Representational Position Encoding",
        2025,
        "2512.07805",
    ),
    Paper(
        "zhang2026jordan",
        "Zhang, Yaobo",
        "Jordan-RoPE: Non-Semisimple Relative Positional Encoding via Complex Jordan Blocks",
        2026,
        "2605.04217",
    ),
)
PAPERS: dict[str, Paper] = {paper.arxiv: paper for paper in _ALL}
