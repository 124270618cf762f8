"""Generated subspaces: every method, and what learned layers buy beside solvers."""

from shared.layers import layers_study
from shared.out_of_sample import out_of_sample_study
from shared.phase import phase_study
from shared.scaling import scaling_study
from shared.script import run_script
from shared.self_expressive import self_expressive_study

from twinsolve.bench.clustering.presets import preset_study
from twinsolve.bench.study import Study


def studies() -> tuple[Study, ...]:
    return (
        preset_study(
            [
                "synthetic:n_samples=50,n_subspaces=5,noise=0.3",
                "synthetic:n_samples=50,n_subspaces=5,noise=0.3,affine=True",
                "synthetic:n_samples=50,n_subspaces=4,n_features=40,angle=0.6,noise=0.2",
            ],
            about="Every method on unions of random, affine and close subspaces.",
            gammas=[50.0, 5.0],
            n_trials=2,
        ),
        phase_study(n_draws=2),
        layers_study(),
        out_of_sample_study(
            ["synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.6", "digits"]
        ),
        self_expressive_study(),
        scaling_study(),
    )


if __name__ == "__main__":
    run_script(__file__)
