"""Rules of thumb that people use. They are shown beside the real number, with their error."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula

ANATOMY = Citation("Hugging Face transformers documentation, Model training anatomy", "https://huggingface.co/docs/transformers/model_memory_anatomy")
FOLKLORE = Citation("rule of thumb without a source")


@formula("quick-inference-16bit", "2·P", FOLKLORE, "Nothing is left for cache, temporaries and context.")
def quick_inference_16bit(*, P: int) -> int:
    """Two GB a billion parameters in 16 bits."""
    return 2 * P


@formula("quick-inference-4bit", "P/2", FOLKLORE, "Scales take 3 to 12 % more, and embeddings and head stay 16-bit.")
def quick_inference_4bit(*, P: int) -> int:
    """Half a GB a billion parameters in 4 bits."""
    return ceil_div(P, 2)


@formula("quick-training", "16·P", FOLKLORE, "States of full training with Adam only; adapters need 16 bytes for their own parameters alone.")
def quick_training(*, P: int) -> int:
    """Sixteen GB a billion parameters for Adam, in fp32 as in mixed precision."""
    return 16 * P


@formula(
    "quick-training-18",
    "18·P",
    ANATOMY,
    "Counts a 16-bit copy (2) beside fp32 weights as if it always lived; autocast makes it for each layer and drops it after backward.",
)
def quick_training_18(*, P: int) -> int:
    """Mixed precision after the transformers documentation: weights 4 + 2, gradients 4, moments 8."""
    return 18 * P


@formula(
    "quick-training-6", "6·P", FOLKLORE, "Wrong for every usual recipe, which holds 16; 6 is the limit of Megatron's distributed optimizer over endless ranks."
)
def quick_training_6(*, P: int) -> int:
    """The rule of six bytes a parameter for mixed precision."""
    return 6 * P


@formula("quick-safety", "1.2·states", FOLKLORE, "States are exact and need no factor; activations, temporaries and the context do not scale with them.")
def quick_safety(*, states: int) -> int:
    """A fifth on top, to be safe."""
    return ceil_div(12 * states, 10)
