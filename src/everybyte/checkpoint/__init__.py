"""Reading what strangers give us, safely: configs, safetensors headers, GGUF heads, hub repositories. Weights stay unread, pickles unloaded."""

from everybyte.checkpoint.gguf import config_from_gguf
from everybyte.checkpoint.read import read_checkpoint
from everybyte.checkpoint.stored import Checkpoint, StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "config_from_gguf", "read_checkpoint"]
