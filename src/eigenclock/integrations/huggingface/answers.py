"""Ten short questions answered greedily: an extension that leaves the loss alone may still break a chat."""

import re
from typing import Any

import torch

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is 2 + 2?": "4",
    "What is the chemical symbol for water?": "H2O",
    "How many days are there in a week?": "7|seven",
    "What is the largest ocean on Earth?": "Pacific",
    "What is the opposite of hot?": "cold",
    "What language is spoken in Brazil?": "Portuguese",
    "What is the first month of the year?": "January",
}
"""Questions, and the word that a right answer has."""
NEW_TOKENS = 24


def answers(model: Any, tokenizer: Any, new_tokens: int = NEW_TOKENS) -> dict[str, str]:
    """What a model answers to each of ``QUESTIONS``, the likeliest token at every step.

    Args:
        tokenizer: its chat template makes the prompt; without one it is "Question: .. Answer:".
    """
    found = {}
    for question in QUESTIONS:
        prompt = f"Question: {question}\nAnswer:"
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        if getattr(tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": question}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
        ids = ids.to(next(model.parameters()).device)
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False)
        found[question] = " ".join(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).split())
    return found


def right(question: str, answer: str) -> bool:
    """Whether an answer has the word that a right one has.

    >>> right("What is 2 + 2?", "The answer is 4."), right("What is 2 + 2?", "It is 42.")
    (True, False)
    """
    return re.search(rf"\b(?:{QUESTIONS[question]})\b", answer, re.IGNORECASE) is not None
