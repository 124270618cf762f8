"""Command `twinsolve vectors`."""

from pathlib import Path

from ..options import Output
from ..terminal import console, progress


def vectors(
    output: Output = Path("results/vectors"),
) -> None:
    """Write reference inputs and outputs, to test kernels of any framework.

    ```
    twinsolve vectors --output vectors
    ```

    Covered are the recurrences of test-time regression (linear attention, delta rules, Mesa,
    Titans, Parallax), and every operator of this package that has an exact twin. Each has small
    cases: inputs, outputs, states and gradients in float64, and how far float64, float32 and
    bfloat16 may differ. Some cases are plain. Others often break kernels: gates of exactly 0 and 1,
    equal and zero keys, reflections, one token, many tokens, lengths that fill no chunk, hidden
    keys, large logits.

    Every number is computed twice, by the solver in NumPy and by a form in torch. Every gradient is
    compared with finite differences. The command writes NAME.npz, NAME.safetensors and
    manifest.json in a quarter of a minute, the same bytes in every run.
    """
    from .writing import write_vectors

    table = write_vectors(output, progress=progress("Vectors"))
    cases = table.groupby(["subject", "case"]).ngroups
    console().print(f"{table.subject.nunique()} subjects, {cases} cases, {len(table)} arrays.")
    console().print(f"Written to {output}/")
