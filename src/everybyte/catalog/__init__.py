"""What is known, as data with source and date: accelerators and models."""

from everybyte.catalog.gpus import Gpu, all_gpus, find_gpu
from everybyte.catalog.models import ModelRow, all_models, find_model, model_config

__all__ = ["Gpu", "ModelRow", "all_gpus", "all_models", "find_gpu", "find_model", "model_config"]
