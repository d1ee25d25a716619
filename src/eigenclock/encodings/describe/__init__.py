"""What an encoding is, block by block, what it can tell apart, and what its lag kernels look like."""

from eigenclock.encodings.describe.blocks import Blocks, Group, read_blocks
from eigenclock.encodings.describe.description import DTYPES, Description, describe, read_dtype
from eigenclock.encodings.describe.findings import Finding, Setting

__all__ = ["DTYPES", "Blocks", "Description", "Finding", "Group", "Setting", "describe", "read_blocks", "read_dtype"]
