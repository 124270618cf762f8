"""What docs/findings.md and docs/clustered.md quote stands in the committed results."""

import itertools
import json
import re
from functools import partial
from pathlib import Path

import adaptation
import classify_path
import numpy as np
import pandas as pd
import pytest
import routers as routing

from twinsolve.bench.longrange import report as longrange
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.run_folder import read_metrics
from twinsolve.bench.tables import markdown, read_table
from twinsolve.bench.vision.classification import report as classification
from twinsolve.bench.vision.denoising.report import differences, note_on_pairs, paired_lines
from twinsolve.bench.vision.inspection import report as inspection
from twinsolve.bench.vision.inspection.sources import shipped_folder
from twinsolve.bench.vision.segmentation import report as segmentation

ROOT = Path(__file__).parents[2]
FINDINGS = (ROOT / "docs/findings.md").read_text()
CLUSTERED = (ROOT / "docs/clustered.md").read_text()


def summary_of(name):
    return (ROOT / f"docs/results/{name}/summary.md").read_text()


def rows_of(name, file="table.json"):
    return json.loads((ROOT / "docs/results" / name / file).read_text())


def table_of(name, file="table.json"):
    return pd.DataFrame(rows_of(name, file))


def test_counts_of_the_check_stand_in_the_committed_results():
    summary = summary_of("check")
    passed, rows, twins = re.search(
        r"^(\d+) of (\d+) rows passed; (\d+) twins", summary, re.M
    ).groups()
    assert passed == rows
    assert f"of {twins} twins has these rows among its {int(rows):,} " in FINDINGS
    better, judged = re.search(r"^(\d+) of (\d+) twins beat doing nothing", summary, re.M).groups()
    assert better == judged == twins
    assert f"all {better} twins do better than nothing" in FINDINGS


def test_digits_quoted_stand_in_the_committed_results():
    table = read_table(ROOT / "docs/results/cluster-mnist/clusters.json.gz")
    parts = ["fit_seconds", "steps_seconds", "eigen_seconds", "cut_seconds"]
    rows = set()
    for (method, settings, steps), group in table.groupby(["method", "settings", "steps"]):
        error, score = 100 * (1 - group.accuracy.mean()), group.selection_score.mean()
        gap = f"{group.gap_max.max():.1e}" if group.gap_max.notna().any() else "-"
        score = "-" if np.isnan(score) else f"{score:.3f}"
        seconds = group[parts].sum(axis=1).mean()
        memory = group.memory_mib.mean()
        cells = f"{error:.2f}", score, gap, f"{seconds:.0f}", f"{memory:.0f}"
        rows.add("| " + " | ".join((method, settings, steps, *cells)) + " |")
    names = "|".join(table.method.unique())
    assert set(re.findall(rf"^\| (?:{names}) \| \w+=.*\|$", CLUSTERED, re.M)) == rows


def test_regression_quoted_for_avx2_stands_in_the_committed_results():
    (avx2, own) = re.findall(r"takes \[([\d.]+) times.*? instead of ([\d.]+)\.", FINDINGS, re.S)[0]
    for folder, ratio in (("speed-filters-avx2", avx2), ("speed-filters", own)):
        rows = rows_of(folder)
        (row,) = [r for r in rows if (r["case"], r["package"]) == ("regression-float64", "numpy")]
        assert f"{row['ratio']:.3g}" == ratio


def test_filters_quoted_for_avx2_stand_in_the_committed_results():
    pattern = r"takes\s+\[([\d.]+) \(7 .*? and ([\d.]+) \(5 .*?float64, ([\d.]+) and ([\d.]+) in"
    found = re.findall(pattern, FINDINGS, re.S)
    (ratios,) = found
    cases = [f"nlm-{size}-{dtype}" for dtype in ("float64", "float32") for size in ("7-21", "5-13")]
    rows = rows_of("speed-filters-avx2-images")
    for case, ratio in zip(cases, ratios, strict=True):
        (row,) = [r for r in rows if r["case"] == case and r["package"] == "scikit-image"]
        assert f"{row['ratio']:.3g}" == ratio


def test_operators_quoted_stand_in_the_committed_results():
    rows = rows_of("speed-attention")
    found = {(row["operator"], row["form"], row["case"]): row for row in rows}
    number = r"(\d+\.?\d*)"
    pattern = rf"^\| (\w+) \| {number} \| {number} \| {number} \| {number} \|$"
    quoted = re.findall(pattern, FINDINGS, re.M)
    assert len(quoted) == 14
    for operator, *ratios, exponent in quoted:
        for case, ratio in zip(("images-197", "tokens-1024", "tokens-4096"), ratios, strict=True):
            measured = found[operator, "fused", case]["training_ratio"]
            assert abs(float(ratio) / measured - 1) < 0.01 + 0.005 / measured, (operator, case)
        measured = found[operator, "fused", "memory"]["memory_exponent"]
        assert abs(float(exponent) - measured) <= 0.006, operator


def test_faults_quoted_stand_in_the_committed_table():
    table = pd.read_csv(ROOT / "tests/faults/listed.csv", keep_default_na=False)
    by_check = int((table.caught_by == "check").sum())
    quoted = r"Of (\d+) faults .* caught (\d+) \(`tests/faults/listed.csv"
    (planted, caught) = re.findall(quoted, FINDINGS)[0]
    assert (int(planted), int(caught)) == (len(table), by_check)
    assert f"| {by_check} of {len(table)} |" in (ROOT / "README.md").read_text()
    (caught, planted) = re.findall(r"(\d+) of (\d+) that lower a precision", FINDINGS)[0]
    precision = table[table.kind == "precision"]
    assert (int(caught), int(planted)) == ((precision.caught_by == "check").sum(), len(precision))
    (seen,) = re.findall(r"(\d+) are seen by tests", FINDINGS)
    assert int(seen) == (table.caught_by == "tests").sum()
    assert set(table[table.caught_by == ""].kind) == {"precision"}


def test_times_on_a_gpu_on_the_scale_page_stand_in_the_committed_results():
    page = (ROOT / "docs/scale.md").read_text()
    quoted = re.findall(r"^\| ([a-z_, ]+)" + r" \| (\d+\.\d\d)" * 3 + r" \|$", page, re.M)
    assert len(quoted) == 4
    summary = summary_of("attention-flex")
    for layer, *times in quoted:
        for tokens, ours in zip(("1,024", "4,096", "8,192"), times, strict=True):
            line = rf"^\| {layer} \| {tokens} \| bfloat16 \| [\d.]+ \| {ours} \|"
            assert re.search(line, summary, re.M), (layer, tokens)


def test_what_noise_costs_on_the_scale_page_is_that_of_its_table():
    page = (ROOT / "docs/scale.md").read_text()
    times = {
        (points, rows): float(seconds)
        for points, rows, _, seconds, *_ in rows_below("scale", "points")
    }
    noisy, clean = times["noisy-50", "100,000"], times["subspaces-50", "100,000"]
    (told,) = re.findall(r"take\s+([\d.]+) times as long as without noise", page)
    assert abs(noisy / clean - float(told)) < 0.05


def test_quality_quoted_on_denoising_stands_in_the_committed_results():
    page = (ROOT / "docs/denoising.md").read_text()
    table = table_of("denoise")
    means = table.groupby("method").agg({"psnr": "mean", "seconds": "sum", "megapixels": "sum"})
    quoted = re.findall(
        r"^\| ([\w ,-]+) \| (solved|peer|trained) \| ([\d.]+) \| ([\d.]+) \|", page, re.M
    )
    assert len(quoted) == 12
    for method, _, psnr, seconds in quoted:
        row = means.loc[method]
        assert f"{row.psnr:.2f}" == psnr
        assert f"{row.seconds / row.megapixels:.3g}" == seconds
    db = {method: float(psnr) for method, _, psnr, _ in quoted}
    claims = [cells[-1] for cells in rows_below("denoising", "network | ahead of")]
    pairs = {
        "FilterDiffusionDenoiser, trained": "total variation",
        "ConvexRidgeDenoiser, trained": "total variation",
        "NonLocalMeansDenoiser, trained": "non-local means, Gaussian",
        "PatchCodingDenoiser, trained": "OMP, K-SVD",
        "MixtureOfExpertsDenoiser, trained": "OMP, K-SVD",
        "GroupCodingDenoiser, trained": "low-rank groups",
    }
    assert [f"{db[own] - db[solved]:.2f}" for own, solved in pairs.items()] == claims
    psnr = table.pivot(index="image", columns="method", values="psnr")
    verdicts = judge({a: paired_difference(psnr[a], psnr[b]) for a, b in pairs.items()}).values()
    assert {verdict.words for verdict in verdicts} == {"ahead"}
    assert max(verdict.p for verdict in verdicts) < 0.01
    assert "for these six, each p over images is under 0.01." in " ".join(page.split())
    told = r"learned diffusion steps .* a PSNR of ([\d.]+) dB\. BM3D has (\d+\.\d+)\."
    ((own, other),) = re.findall(told, " ".join(FINDINGS.split()))
    assert float(own) == db["FilterDiffusionDenoiser, trained"]
    assert other == f"{db['BM3D']:.2f}"


def _paired(folder):
    """Cells of a run's pairs, by network and images: dB, corrected p, verdict."""
    table = table_of(folder)
    lines = paired_lines(table)
    told = "\n".join([*markdown(*lines), "", note_on_pairs(table)])
    assert told in summary_of(folder)
    return table, {(row[0].removesuffix("Denoiser, trained"), row[1]): row[3:6] for row in lines[1]}


def _told_apart(pairs, images, word):
    return {
        name for (name, of), (_, _, verdict) in pairs.items() if (of, verdict) == (images, word)
    }


def test_pairs_quoted_on_denoising_stand_in_the_committed_results():
    page = " ".join((ROOT / "docs/denoising.md").read_text().split())
    _paired("denoise-routing")
    table, pairs = _paired("denoise")
    assert differences(table)[0] == "BM3D"
    codes, windows, diffusion = (
        pairs[name, "all"][0]
        for name in ("GroupCoding", "NonlocalFilterDiffusion", "FilterDiffusion")
    )
    assert f"windows have {codes} and {windows} dB beyond BM3D" in page
    assert (
        f"without such windows have {diffusion}. These are 95 % intervals, not corrected." in page
    )
    assert "Non-local means, experts and the convex ridge are behind BM3D, corrected" in page
    last = {"NonLocalMeans", "MixtureOfExperts", "ConvexRidge"}
    assert _told_apart(pairs, "all", "behind") == last
    assert not _told_apart(pairs, "all", "ahead")
    table, pairs = _paired("denoise-held-out")
    assert differences(table)[0] == "BM3D"
    cell = r" \| ((?:\*\*)?[+-][\d.]+ ± [\d.]+(?:\*\*)?)"
    quoted = re.findall(r"\| (\w+)Denoiser" + cell * 4 + r" \|", page)
    assert len(quoted) == len(pairs) / 4 == 7
    for name, *cells in quoted:
        own = [pairs[name, part] for part in ("train400", "packaged", "camvid", "all")]
        bold = [f"**{apart}**" if word in ("ahead", "behind") else apart for apart, _, word in own]
        assert cells == bold, name
    assert f"after Holm's correction for all {len(pairs)}." in page
    similar, plain = {"NonlocalFilterDiffusion", "GroupCoding"}, {"FilterDiffusion"}
    codes = {"PatchCoding"}
    assert "diffusion, with similar windows or without, and both kinds of codes are ahead" in page
    assert _told_apart(pairs, "camvid", "ahead") == similar | plain | codes
    assert "codes of groups and diffusion with similar windows are ahead. Plain diffusion" in page
    assert "Plain diffusion is not told apart there (" in page
    assert _told_apart(pairs, "train400", "ahead") == similar
    assert "the convex ridge is behind, and nothing else is told apart" in page
    assert _told_apart(pairs, "packaged", "behind") == {"ConvexRidge"}
    assert not _told_apart(pairs, "packaged", "ahead")
    assert "both diffusions and codes of groups are ahead, and the three networks at the" in page
    assert _told_apart(pairs, "all", "ahead") == similar | plain
    assert _told_apart(pairs, "all", "behind") == last == {name for name, *_ in quoted[-3:]}
    assert f"(corrected p {pairs['FilterDiffusion', 'train400'][1]})" in page
    experts, means = (pairs[x, "packaged"][1] for x in ("MixtureOfExperts", "NonLocalMeans"))
    assert f"neither experts ({experts}) nor non-local means ({means})" in page
    apart, p, word = pairs["FilterDiffusion", "all"]
    told = f"BM3D is {apart.removeprefix('+')} dB behind, uncorrected; corrected p {p}."
    assert (word, told in " ".join(FINDINGS.split())) == ("ahead", True)
    psnr = table.pivot(index="image", columns="method", values="psnr")
    plain = "FilterDiffusionDenoiser, trained"
    seconds = table.groupby("method").seconds.sum()
    numbers = table.groupby("method").parameters.first()
    gains, times, beyond = [], [], {}
    for name in ("GroupCodingDenoiser, trained", "NonlocalFilterDiffusionDenoiser, trained"):
        beyond[name] = paired_difference(psnr[name], psnr[plain])
        gains.append(str(beyond[name]).removeprefix("+"))
        times.append(seconds[name] / seconds[plain])
    assert f"{gains[0]} and {gains[1]} dB. The intervals are not corrected. Corrected" in page
    assert "Corrected for these two, each p is under 0.001." in page
    assert max(verdict.p for verdict in judge(beyond).values()) < 0.001
    assert f"The codes pay {times[0]:.1f} times" in page
    larger = numbers["GroupCodingDenoiser, trained"] / numbers[plain]
    assert f"{larger:.1f} times its parameters. The windows pay {times[1]:.1f} times" in page


def test_scale_and_digits_quoted_stand_in_the_committed_results():
    text = " ".join(FINDINGS.split())
    (skipped,) = re.findall(r"skips (\d+\.\d+) % of the inner products", text)
    row = rf"^\| subspaces-50 \| 1,000,000 \| .*\| {skipped}% \|"
    assert re.search(row, summary_of("speed-scale"), re.M)
    number = r"(\d+\.\d+)"
    told = (
        rf"with ([\d,]+) parameters, has a top-1 of {number} %\. Softmax attention with ([\d,]+) "
        rf"parameters has {number} %\. The difference is inconclusive at ± {number} points"
    )
    ((size, top1, plain_size, plain, least),) = re.findall(told, text)
    steps = rf"one ISTA step a layer \| 5 \| {top1} \|.* inconclusive at ± {least} \|.* {size} \|"
    softmax = rf"softmax \| 5 \| {plain} \|.* {plain_size} \|"
    for row in (steps, softmax):
        assert re.search(rf"^\| {row}", summary_of("classify-path"), re.M), row


def test_noise_levels_quoted_on_denoising_stand_in_the_committed_results():
    page, summary = (ROOT / "docs/denoising.md").read_text(), summary_of("noise-levels")
    part = page.split("## A picture that is noisy already", 1)[1].split("\n## ", 1)[0]
    words = " ".join(part.split())
    number = r"[-+]?[\d.]+(?: ± [\d.]+)?"
    for sigma, told in (
        ("50", f"rescaling by ({number}) dB at 50"),
        ("15", f"At 15 it has ({number}), which"),
    ):
        (apart,) = re.findall(told, words)
        row = rf"filter-diffusion, trained for the noise \| .* \| {re.escape(apart)} \|"
        assert re.search(rf"^\| {sigma} \| {row}", summary, re.M), sigma
    tiled = "total variation is off|convex ridge|low-rank groups|BM3D|scikit-image's wavelets"
    quoted = re.findall(rf"({tiled}) by (\d+\.\d+)", words)
    assert len(quoted) == 5
    for name, told in quoted:
        title = name.removesuffix(" is off").replace("'s", "")
        title = title.replace("convex ridge", "ConvexRidgeDenoiser, trained")
        assert re.search(rf"^\| {title} \| [\d.]+ \| {told} \|$", summary, re.M), name


def test_what_others_measured_of_denoising_stands_apart():
    page = (ROOT / "docs/denoising.md").read_text()
    before, _, after = page.partition("### Published and measured elsewhere")
    apart, _, rest = after.partition("\nTraining took")
    assert rest
    names = ("CRR", "WCRR", "TNRD", "CSCNet", "GroupSC", "DnCNN")
    assert all(name in apart and name not in before + rest for name in names)
    for summary in (ROOT / "docs/results").glob("denoise*/summary.md"):
        assert not any(name in summary.read_text() for name in names)


def test_layers_quoted_on_inspection_stand_in_the_committed_results():
    page = (ROOT / "docs/inspection.md").read_text()
    table = table_of("inspect")
    layers = table[table["kind"] == "layer"]
    quoted = re.findall(r"^\| (\d) \| " + r"([\d.e+-]+) \| " * 7 + r"([\d.e+-]+) \|$", page, re.M)
    assert len(quoted) == len(layers) == 6
    formats = {
        "deviation": ".1e", "token_cosine": ".2f", "hc_attention": ".2f",
        "hc_attention_bound": ".1f", "log10_condition_branch": ".2f",
        "log10_condition_after": ".2f", "eigenvalue_2": ".2f", "jacobian_block": ".1f",
    }  # fmt: skip
    for (layer, *cells), (_, row) in zip(quoted, layers.iterrows(), strict=True):
        assert [layer, *cells] == [
            f"{row.layer:.0f}", *(format(row[key], form) for key, form in formats.items())
        ]  # fmt: skip
    lines = {line[0]: line for line in inspection.parts(table)[BY_CHANCE][1]}
    own, permuted, random = (lines[f"{words}"] for words in NULLS)
    text = " ".join(page.split())
    for said in (
        f"explains {own[1]} heads. By chance it explains as many: {permuted[1]} on permuted "
        f"tokens, and {random[1]} with random weights",
        f"is determined for {own[2]} heads, on permuted tokens for {permuted[2]}",
        f"Gaussian smoothing is {own[5]}, and {permuted[5]} on permuted tokens",
        f"With random weights it is {random[5]}",
    ):
        assert said in text, said


BY_CHANCE = "Heads beside classical problems, and by chance"
NULLS = ("as it is", "on permuted tokens", "with random weights")


def test_conditions_quoted_over_training_are_those_of_the_shipped_run():
    text = " ".join((ROOT / "docs/inspection.md").read_text().split())
    rows = {row["step"]: row for row in read_metrics(shipped_folder("digits"))}
    start, soon, last = (rows[step] for step in (0, 250, 2500))
    quoted = re.findall(r"from 10\^([\d.]+) at the start to 10\^([\d.]+)\. ", text)
    branch = "log10_condition_branch"
    assert quoted == [tuple(f"{row[f'{branch} 6']:.2f}" for row in (start, soon))]
    fallen = [start[f"{branch} {layer}"] - soon[f"{branch} {layer}"] for layer in range(1, 7)]
    (first, least, most) = re.findall(
        r"factor of ([\d.]+) in the first layer and of (\d+) to (\d+)", text
    )[0]
    assert float(first) == round(10 ** fallen[0], 1)
    assert (int(least), int(most)) == (round(10 ** min(fallen[3:])), round(10 ** max(fallen[3:])))
    assert all(abs(last[f"{branch} {k}"] - soon[f"{branch} {k}"]) < 0.15 for k in range(1, 7))
    assert (
        max(row[f"log10_condition_after {k}"] for row in rows.values() for k in range(1, 7)) < 1.5
    )


def router_lines():
    return routing.router_parts(table_of("classify-routers", "routers.json"))


SUMMARIES = {
    **{
        path.name: (classification.lines_of,)
        for path in sorted((ROOT / "docs/results").glob("classify-*"))
    },
    "classify-digits": (classification.lines_of, classification.matched_lines),
    "classify-cifar10": (classification.lines_of, classification.matched_lines),
    "classify-path": (classification.lines_of, classify_path.path_lines),
    "classify-routers": (classification.lines_of,),
    "classify-adaptation": (adaptation.adapted_lines,),
    **dict.fromkeys(
        ("segment", "segment-parts"),
        (
            segmentation.lines_of,
            partial(segmentation.lines_of, column="miou_multi_scale"),
            segmentation.class_lines,
        ),
    ),
    "longrange-listops": (longrange.lines_of,),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_of_verdicts_are_what_their_tables_say(name):
    summary, table = summary_of(name), table_of(name)
    tables = [lines(table) for lines in SUMMARIES[name]]
    if name == "classify-routers":
        tables += router_lines().values()
    for lines in tables:
        assert "\n".join(markdown(*lines)) in summary
    for sentence in NOTES[name](table):
        assert sentence in summary


def classification_notes(table):
    found = classification.remarks(table) + classification.notes(table)
    return found + classify_path.notes_of_path(table)


NOTES = dict.fromkeys(SUMMARIES, classification_notes) | {
    "classify-adaptation": adaptation.adapted_notes, "segment": segmentation.notes,
    "segment-parts": segmentation.notes,
    "longrange-listops": longrange.notes, "language": lambda table: [],
}  # fmt: skip


def test_numbers_quoted_on_routers_stand_in_the_committed_results():
    page = (ROOT / "docs/routers.md").read_text()
    lines = [markdown(*part) for part in router_lines().values()]
    quoted = re.findall(r"^\| .*", page.split("## What it shows")[1], re.M)
    assert [sum(x in part for x in quoted) for part in lines] == [12, 7, 7, 20]
    assert len(quoted) == 46
    interval = r"[-+]\d+\.\d+ ± \d+\.\d+"
    prose = re.findall(interval, re.sub(r"^\|.*", "", page, flags=re.M))
    assert len(prose) >= 4
    assert set(prose) <= set(re.findall(interval, "\n".join(lines[3] + top1_of_routers())))


def top1_of_routers():
    return markdown(*classification.lines_of(table_of("classify-routers")))


def test_classification_quoted_on_routers_stands_in_the_committed_results():
    text = " ".join((ROOT / "docs/routers.md").read_text().split())
    means = table_of("classify-routers").pivot(index="seed", columns="row")
    top1, plain, own = means["top1"], "softmax", "mixture of experts"
    assert f"{top1[own].mean():.2f} % against {top1[plain].mean():.2f} %" in text
    (line,) = (line for line in top1_of_routers() if line.startswith(f"| {own} |"))
    assert all(f" {cell} " in line for cell in re.findall(r"inconclusive at ± [\d.]+", text)[-1:])
    times = means["parameters"].mean()
    assert f"with {times[own] / times[plain]:.1f} times the parameters" in text
    assert f"and {means['inference'][own].mean():.2f} of its speed" in text


def test_verdicts_quoted_on_classification_stand_in_the_committed_results():
    text = " ".join((ROOT / "docs/classification.md").read_text().split())
    for name, least in (("digits", "ALiBi"), ("cifar10", "sparse coding")):
        head, lines = classification.lines_of(table_of(f"classify-{name}"))
        rows = [dict(zip(head, line, strict=True)) for line in lines[1:]]
        words = {row["row"]: row["verdict"].split()[0] for row in rows}
        assert [row for row, word in words.items() if word in ("ahead", "behind")] == [least]
        seen = [
            float(row["seen with 80 % power"])
            for row in rows if words[row["row"]] == "inconclusive"
        ]  # fmt: skip
        assert f"differences of {min(seen)} to {max(seen)} points" in text
        if name == "digits":
            assert f"The other {len(seen)} rows are inconclusive" in text
            assert "equal" not in words.values()
    matched = classification.matched_lines(table_of("classify-digits"))[1]
    told = {row: sum("(" not in cell for cell in cells) for row, *cells in matched}
    assert {row: n for row, n in told.items() if n} == {"ALiBi": 9}
    summary = summary_of("classify-digits")
    (apart, seen) = re.search(
        r"comparison: (\S+ ± \S+) points, .* power at (\S+)\.\n", summary
    ).groups()
    assert f"{apart} points, a comparison on its own, which sees {seen} points" in text
    (number,) = re.findall(r"corrected for the (\d+) comparisons of that table", summary)
    assert f"corrected for the {number} comparisons of the whole table" in text


def test_verdicts_quoted_on_segmentation_stand_in_the_committed_results():
    text = " ".join((ROOT / "docs/segmentation.md").read_text().split())
    verdicts = judge(segmentation.differences(table_of("segment"))).values()
    assert {each.words.split()[0] for each in verdicts} == {"inconclusive"}
    assert all(abs(each.apart.mean) < each.apart.half_width for each in verdicts)
    seen = [each.detectable for each in verdicts]
    assert len(seen) == 8
    assert f"Three seeds see {min(seen):.2f} to {max(seen):.2f} points" in text
    table = table_of("segment-parts")
    verdicts = judge(segmentation.differences(table)).values()
    assert {each.words.split()[0] for each in verdicts} == {"inconclusive"}
    apart = segmentation.differences(table, {"symmetric + NeuTRENO": "symmetric"})
    once, often = (apart["symmetric + NeuTRENO", x] for x in ("miou", "miou_multi_scale"))
    assert f"without it by {once} points at one scale and {often} at three" in text


def test_verdicts_quoted_on_long_range_stand_in_the_committed_results():
    text = " ".join((ROOT / "docs/longrange.md").read_text().split())
    table = table_of("longrange-listops")
    verdicts = judge(classification.differences(table))
    words = {row: verdict.words.split()[0] for row, verdict in verdicts.items()}
    others = dict.fromkeys(("bilateral", "sparse coding"), "inconclusive")
    assert words == {"ALiBi": "behind"} | others
    assert f"ALiBi is behind**, by {-verdicts['ALiBi'].apart.mean:.2f} points" in text
    seen = [verdicts[row].detectable for row in words]
    assert f"Three seeds see {min(seen):.2f} to {max(seen):.2f} points" in text
    means = table.groupby("row")[["token_cosine", "training"]].mean()
    cosines = [means.token_cosine[row] for row in ("sparse coding", "softmax")]
    assert "mean cosine of {:.2f} against {:.2f}".format(*cosines) in text
    assert f"trains at {means.training['sparse coding']:.2f} of softmax's speed" in text


NAMES = {
    "Yale B, 10": "yaleb-10", "Yale B, 38": "yaleb-38", "COIL-20": "coil20",
    "curves, 0.5": "manifolds:n_samples=60,n_manifolds=4,curvature=0.5",
    "curves, 1.0": "manifolds:n_samples=60,n_manifolds=4,curvature=1.0",
    "rolls": "manifolds:n_samples=60,n_manifolds=3,shape='roll'",
}  # fmt: skip
QUOTED = [
    ("findings", "twin", "check", 5), ("findings", "case | solver", "speed-s*", 12),
    ("clustered", "recipe", "cluster-hopkins", 9), ("clustered", "subjects", "cluster-yaleb", 13),
    ("clustered", "data | steps", "cluster-*", 14),
    ("clustered", "data | method", "cluster-synthetic", 15),
    ("findings", "case | method", "speed-filters", 30), ("scale", "points", "speed-scale", 9),
    ("denoising", "method | noise", "noise-levels", 13), ("denoising", "router", "denoise-r*", 3),
    ("language", "row", "language", 8), ("classification", "", "classify*", 30),
    ("classification_parts", "", "classify*", 45), ("classification_steps", "", "classify*", 18),
    ("segmentation", "", "segment*", 18), ("longrange", "", "longrange*", 4),
]  # fmt: skip


@pytest.mark.parametrize(("page", "head", "results", "n_rows"), QUOTED)
def test_rows_of_tables_quoted_from_summaries_stand_there(page, head, results, n_rows):
    """The cells of each row of a page's tables stand in one row of a summary, in their order."""
    summaries = (ROOT / "docs/results").glob(f"{results}/summary.md")
    known = [cells_of(line) for path in summaries for line in path.read_text().splitlines()]
    quoted = list(rows_below(page, head))
    assert len(quoted) >= n_rows
    for first, *cells in quoted:
        name = NAMES.get(first, first)
        assert any(
            row[0].startswith(name) and all(cell in rest for cell in cells)
            for row in known
            for rest in [iter(row[1:])]
        ), (first, *cells)


def rows_below(page, head):
    """Cells of rows of the tables of a page whose heads begin so."""
    lines, asked = (ROOT / f"docs/{page}.md").read_text().splitlines(), False
    for line, below in itertools.pairwise([*lines, ""]):
        if below.startswith("|---"):
            asked = line.startswith(f"| {head}")
        elif asked and line.startswith("| "):
            yield cells_of(line)


def cells_of(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_codes_of_the_router_quoted_on_denoising_stand_in_the_committed_results():
    page = (ROOT / "docs/denoising.md").read_text()
    summary = summary_of("denoise-routing")
    quoted = re.findall(
        r"^\| (start|trained) \| (K-SVD|own) atoms \|" + r" ([\d.]+) \|" * 9 + "$", page, re.M
    )
    assert len(quoted) == 3
    for router, atoms, *numbers in quoted:
        assert f"| {router} | {atoms} atoms | {' | '.join(numbers)} |" in summary
    overlaps = {(router, atoms): numbers[1:3] for router, atoms, *numbers in quoted}
    text = " ".join(page.split())
    told = re.findall(r"(\d\.\d+) of their atoms, where chance is (\d\.\d+)", text)
    assert [list(pair) for pair in told] == [
        [f"{float(x):.2f}" for x in overlaps[row]]
        for row in (("start", "K-SVD"), ("trained", "K-SVD"), ("trained", "own"))
    ]
    (start, _, own) = (numbers for _, _, *numbers in quoted)
    assert f"leave {own[5]} of a patch, the router ones that leave {own[4]} after" in text
    (further,) = re.findall(r"at the start, (\d\.\d+ for \d\.\d+)\.", text)
    assert further == f"{own[6]} for {start[6]}"
    rows = rows_of("denoise-routing")
    psnr = pd.DataFrame(rows).groupby("kind").psnr.mean()
    assert f"better by {psnr['trained'] - psnr['start']:.2f} dB" in text


def test_what_solved_layers_take_and_bring_stands_in_the_committed_results():
    page = (ROOT / "docs/solved.md").read_text()
    times = table_of("speed-lasso-layer").groupby("method")
    span = r"([\d,]+) to ([\d,]+)"
    told = re.findall(rf"^\| [^|]+ \| {span} \| [\d.e][^|]* \| {span} \|$", page, re.M)
    assert len(told) == 7
    found = set()
    for _, own in times:
        kib = 1024 * own.memory_mib / own.n_signals
        found.add(tuple(f"{x:,.0f}" for y in (own.ratio, kib) for x in (y.min(), y.max())))
    assert set(told) <= found
    ours = times.get_group("twinsolve")
    assert {f"{x:.2f}" for x in ours.ms} == {"0.03", "0.06", "0.07", "0.15"}
    assert f"{ours.gradient_error.max():.1e}" == "1.2e-09"
    assert "at most 1.2e-9" in " ".join(page.split())
    equal = times.get_group("jaxopt, tol=1e-10").set_index("case")
    assert equal.gradient_error.max() < 1e-8
    told = re.findall(r"(\d+) and (\d+) times", " ".join(page.split()))
    cases = [f"{kind}-{lam}" for kind in ("random", "coherent") for lam in (0.2, 0.1)]
    assert sorted(f"{x:.0f}" for x in equal.ratio[cases]) == sorted(x for two in told for x in two)
    for name in ("task-driven", "learned-embedding", "classify-solved"):
        of_run = page.partition(f"(results/{name}/summary.md)")[2].partition("**")[0]
        intervals = re.findall(r"-?\d+\.\d\d ± \d+\.\d\d", of_run)
        assert len(intervals) >= 1
        assert all(interval in summary_of(name) for interval in intervals)
    trained = table_of("classify-solved").groupby("row")
    speeds = trained[["training", "inference"]].mean()
    for slower in (speeds.loc["sparse coding"] / speeds.loc["solved codes"]).round():
        assert f"{slower:.0f} times as long to" in page
    cosines = trained.token_cosine.mean()
    rows = ("solved codes", "sparse coding", "softmax")
    told = "a cosine of {:.2f} beside {:.2f}, and {:.2f} for softmax"
    assert told.format(*cosines[list(rows)]) in " ".join(page.split())
    errors = table_of("learned-embedding")
    faces = errors[(errors.data == "faces") & (errors.kept == 3)].groupby("kind").error.mean()
    told = re.findall(r"(\d+\.\d\d) %", page.partition("An embedding")[2])
    assert told == [f"{faces[kind]:.2f}" for kind in ("features", "whitened", "linear", "residual")]
