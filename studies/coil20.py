"""The turned objects of COIL-20 by every method, by the recipes, and on held-out points."""

from shared.out_of_sample import out_of_sample_study
from shared.script import run_script

from twinsolve.bench.clustering.presets import DESIGN, SIX_STEPS, preset_study
from twinsolve.bench.study import Study


def studies() -> tuple[Study, ...]:
    return (
        preset_study(
            ["coil20"],
            about="COIL-20 by every method, settings chosen without labels." + DESIGN,
            without=["LRR", "LRSSC"],
            features=["unit-pca-200"],
            gammas=[50.0, 5.0, 20.0],
            affinity=SIX_STEPS,
            n_fits=2,
        ),
        preset_study(
            ["coil20"],
            ["SSC", "LSR"],
            name="recipes",
            about="The recipes of EQUATIONS PP-R: SSC by unit-rows, LSR by svd-power. Their "
            "settings were chosen with labels.",
            settings={"SSC": [{"gamma": 10.0}], "LSR": [{"lam": 0.01}]},
            affinity=["unit-rows", "svd-power 4 8"],
            tuned=True,
        ),
        out_of_sample_study(["coil20"]),
    )


if __name__ == "__main__":
    run_script(__file__)
