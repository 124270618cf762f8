"""What the pages say against figures and tables of the papers stands in the results."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from twinsolve.bench.comparison import depth_differences
from twinsolve.bench.language import report
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.vision.classification.measures import hits
from twinsolve.bench.vision.classification.report import differences

DOCS = Path(__file__).parents[2] / "docs"


def read_table(name):
    return pd.DataFrame(json.loads((DOCS / "results" / name / "table.json").read_text()))


def read_page(name):
    """Text of a page, or of all that a pattern names, on one line."""
    return " ".join(" ".join(page.read_text() for page in sorted(DOCS.glob(name))).split())


def test_smoothness_and_gradients_over_depth():
    table = read_table("inspect")
    found = table[table.J.notna()].sort_values("layer").J
    quoted = re.search(
        r"J of what attention puts out is ([\d., ]+) in layers", read_page("inspection.md")
    )
    assert [f"{x:.3f}" for x in found] == quoted[1].split(", ")
    quoted = re.search(r"sum of the weights, J is ([\d., and]+)\. The", read_page("inspection.md"))
    sums = table[table.J.notna()].sort_values("layer").J_sum
    assert [f"{x:,.0f}" for x in sums] == re.split(", | and ", quoted[1])
    rises = [x.iloc[-1] / x.iloc[0] for x in (sums, found)]
    said = "The last is {:.1f} times the first, where J is {:.1f} times."
    assert said.format(*rises) in read_page("inspection.md")
    cosines = table[table.J.notna()].sort_values("layer").gradient_cosine
    quoted = re.search(
        r"cosine of the two steps is ([\d., ]+) by layer", read_page("inspection.md")
    )
    assert [f"{x:.2f}" for x in cosines] == quoted[1].split(", ")


def test_networks_with_and_without_featscale():
    page = read_page("inspection.md")
    digits, cifar10 = map(read_table, ("inspect-featscale", "inspect-featscale-cifar10"))
    learned = digits.pivot(index="layer", columns="model", values="learned_t_minus_s").dropna(
        axis=1
    )
    first, last = (", ".join(f"{x:.3f}" for x in learned.loc[layer]) for layer in (1, 6))
    assert f"is {first} in layer 1 and {last} in layer 6, by seed" in page
    late = learned.loc[3:]
    n_negative = (late < 0).to_numpy().sum()
    assert f"negative in {n_negative} of the {late.size} layers from the third on" in page
    raised = cifar10.learned_t_minus_s.dropna()
    n_positive = f"positive in {(raised > 0).sum()} of {len(raised)} layers"
    assert f"{n_positive}, {raised.min():.3f} to {raised.max():.3f}." in page
    for table, words in ((digits, "on digits"), (cifar10, "on CIFAR-10")):
        first = table[table.layer == 1].mean(numeric_only=True)
        parts = first.logits_position_position, first.logits_token_token
        assert re.search(r"by {:.2f} and (?:the second by )?{:.2f} {}".format(*parts, words), page)
        cosine = table[table.layer == 6].set_index("model").token_cosine
        changes = [
            cosine[f"ViT-scale=FeatScale-seed-{k}"] - cosine[f"ViT-seed-{k}"] for k in range(3)
        ]
        assert f"{', '.join(f'{x:+.3f}' for x in changes)} {words}" in page


def test_smoothness_over_depth_depends_on_the_network():
    page = read_page("inspection.md")
    digits, cifar10 = (
        read_table(name).pivot(index="layer", columns="model", values="J")
        for name in ("inspect-featscale", "inspect-featscale-cifar10")
    )
    assert digits.shape == cifar10.shape == (6, 6)
    assert set(digits.idxmax()) == {2, 3}
    assert f"in the last layer at most {digits.loc[6].max():.3f}." in page
    n_lower = (cifar10.loc[6] < cifar10.loc[1]).sum()
    assert f"lower in the last layer than in the first in {n_lower} of 6." in page


def test_token_cosine_of_random_weights():
    page = read_page("inspection.md")
    cosine = read_table("inspect-untrained").pivot(
        index="layer", columns="model", values="token_cosine"
    )
    plain, pulled = cosine["ViT"], cosine["ViT-correction=neutreno"]
    said = "from {:.2f} behind the first layer to {:.2f} behind the last."
    assert said.format(plain.iloc[0], plain.iloc[-1]) in page
    assert plain.is_monotonic_increasing
    assert pulled.iloc[0] == plain.iloc[0]
    assert f"the cosine ends at {pulled.iloc[-1]:.2f}." in page
    alike = read_table("inspect-untrained").query("layer == 1").map_similarity
    assert "map similarity is {:.2f} without and {:.2f} with it.".format(*alike) in page


def test_cosines_and_times_of_digits():
    table, page = read_table("classify-digits"), read_page("classification*.md")
    cosine = table.pivot(index="seed", columns="row", values="token_cosine")
    rise = cosine.sub(cosine["softmax"], axis=0).mean()
    assert f"rises by {rise['AttnScale']:.3f} with it" in page
    falls = (
        f"GRC lowers it by {-rise['GRC']:.3f}, bilateral + GRC by {-rise['bilateral + GRC']:.3f};"
    )
    assert falls in page
    assert 0 < rise["FeatScale"] < 0.01
    assert "NeuTRENO and twicing lower it by 0.23." in page
    assert rise[["NeuTRENO", "twicing"]].to_numpy() == pytest.approx([-0.23, -0.23], abs=0.005)
    speed = table.groupby("row")[["inference", "flops"]].mean()
    assert speed.flops["NeuTRENO"] == speed.flops["softmax"]
    times = speed.inference["softmax"] / speed.inference["NeuTRENO"]
    assert f"its inference takes {times:.2f} times that of softmax" in page
    assert speed.flops["bilateral"] == speed.flops["softmax"]
    share = speed.inference["bilateral"] / speed.inference["softmax"]
    assert f"It runs at {share:.2f} of the speed." in page


def test_depth_and_scales():
    page, depths = read_page("classification*.md"), (6, 12, 24)
    tables = {depth: read_table(f"classify-depth-{depth}") for depth in depths}
    plain = [tables[d][tables[d].row == "softmax"].mean(numeric_only=True) for d in depths]
    cosines, scores = (
        "{}, {} and {}".format(*(f"{own[x]:.2f}" for own in plain))
        for x in ("token_cosine", "top1")
    )
    assert f"deeper networks**, {cosines} behind" in page
    assert f"as many steps: {scores} %" in page
    verdicts = {
        (depth, row): verdict
        for depth, table in tables.items()
        for row, verdict in judge(differences(table)).items()
    }
    ahead = verdicts.pop((24, "AttnScale"))
    assert ahead.words == "ahead"
    assert f"24 layers, by {ahead.apart}".replace("+", "") in page
    assert {each.words for each in verdicts.values()} == {"equal within 1"}
    of_all = judge(
        {key: each.apart for key, each in ({(24, "AttnScale"): ahead} | verdicts).items()}
    )
    assert {each.words for each in of_all.values()} == {"equal within 1"}
    assert f"for the six of all three runs p is {of_all[24, 'AttnScale'].cells[1]}" in page
    moved = [depth_differences(table, "token_cosine") for table in tables.values()]
    assert max(abs(x.mean) for each in moved for x in each.values()) < 0.006
    seen = [each.detectable for each in (ahead, *verdicts.values())]
    assert f"differences of {min(seen):.2f} to {max(seen):.2f} points" in page


def test_scales_of_24_layers():
    table, page = read_table("inspect-depth-24"), read_page("classification*.md")
    learned = table.groupby("model", sort=False)[["learned_omega", "learned_t_minus_s"]]
    (omega, _), (_, apart) = (
        (own.learned_omega, own.learned_t_minus_s) for _, own in list(learned)[1:]
    )
    words = "above zero in {} of 24 layers and at most {:.3f}, t - s above zero in {} and at most "
    found = words.format((omega > 0).sum(), omega.max(), (apart > 0).sum()) + f"{apart.max():.3f}"
    assert found in page
    maps = table.pivot(index="layer", columns="model", values="map_similarity")
    lower = maps["ViT-correction=attn_scale"] - maps["ViT"]
    assert (lower < 0).all()
    heads = table.pivot(index="layer", columns="model", values="head_redundancy")
    n_lower = (heads["ViT-correction=attn_scale"] < heads["ViT"]).sum()
    words = f"in every layer, by {-lower.mean():.2f} on average, and that of the heads in {n_lower}"
    assert f"{words} of 24." in page


def test_perplexities():
    table, page = read_table("language"), read_page("language.md")
    apart = report.differences(table)
    for row, words in (("bilateral", "by {} % of the perplexity"), ("GRC", "is ahead** by {} %")):
        assert words.format(f"{apart[row].mean:.2f}") in page
    assert f"and with GRC by {apart['bilateral + GRC'].mean:.2f} %" in page
    assert f"holds zero: {apart['NeuTRENO']} and {apart['symmetric + NeuTRENO']}" in page
    clean, swapped = (
        table[name].map(np.mean).groupby(table.row).mean() for name in ("clean", "swapped")
    )
    rise = 100 * np.expm1(swapped - clean)
    assert f"by {rise.min():.1f} to {rise.max():.1f} %" in page
    sizes = table.groupby("row").parameters.first()
    more = [sizes[row] - sizes["softmax"] for row in ("bilateral", "bilateral + GRC")]
    assert "They have {} and {} parameters more".format(*more) in page
    clean, swapped = (judge(report.differences(table, x)) for x in ("clean", "swapped"))
    assert all(swapped[row].words.split()[0] == clean[row].words.split()[0] for row in clean)


def test_tokens_and_accuracy_without_skips():
    table, page = read_table("classify-skips-cifar10"), read_page("classification*.md")
    means = table.groupby("row")[["token_cosine", "log10_condition"]].mean()
    attention, other = means.loc["no attention skip"], means.loc["ViT:feed_forward_skip=False"]
    assert f"cosine {attention.token_cosine:.4f}, and their condition number" in page
    assert f"bound of float64, 10^{attention.log10_condition:.1f}" in page
    assert (
        f"the cosine is {other.token_cosine:.2f} and the condition 10^{other.log10_condition:.1f}"
        in page
    )
    rows = ("no attention skip", "ViT:feed_forward_skip=False")
    found = judge(differences(table))
    first, second = (-found[row].apart.mean for row in rows)
    assert f"accuracy falls by {first:.2f} points" in page
    assert f"feed-forward parts it falls by {second:.2f}." in page
    assert f"as well**, by {-found['ConvMixer, no skip'].apart.mean:.2f} points" in page
    for name in ("classify-skips-cifar10-300", "classify-skips-cifar10-3000"):
        other = judge(differences(read_table(name)))
        for row in (*rows, "ViT:attention_skip=False,feed_forward_skip=False"):
            assert found[row].words == other[row].words == "behind"
            assert found[row].apart.mean < other[row].apart.mean
    apart = [
        paired_difference(hits(own, rows[0]), hits(own, rows[1]))
        for own in (table, *(read_table(f"classify-skips-cifar10-{n}") for n in (300, 3000)))
    ]
    words = "apart by {} points after 600 steps and by {} after 300, each a comparison on its own. "
    assert (words + "On 3,000 photographs they are apart by {}.").format(*apart) in page
    layers = read_table("inspect-skips").groupby("model").log10_condition_after
    both, without, others = (
        ", ".join(f"{x:.1f}" for x in layers.get_group(name).dropna())
        for name in ("ViT", "ViT-attention_skip=False", "ViT-feed_forward_skip=False")
    )
    assert f"{both} with both skips; - {without} without the one around attention, and" in page
    assert f"- {others} without the other." in page
    digits = [judge(differences(read_table(f"classify-skips-{n}"))) for n in (600, 300)]
    assert {x.words.split()[0] for each in digits for x in each.values()} == {"inconclusive"}
    of_digits = [f"{each[row].apart.mean:.2f}" for row in rows for each in digits]
    words = "{} and {} points without the skip around attention, {} and {} without the other one"
    assert words.format(*of_digits) in page


def test_hidden_patches():
    table, page = read_table("masked-patches"), read_page("classification*.md")
    error = table.errors.map(np.mean).groupby(table.row + " " + table.kind).mean()
    error = 100 * error / error["mean image solved"]
    rows = ("non-local means solved", "LLE solved", "sparse coding (SSC) solved", "ridge solved")
    words = (
        "fills best**, {:.1f} %, then LLE, {:.1f} %, sparse coding, {:.1f} %, and ridge "
        "regression, {:.1f} %"
    )
    assert words.format(*error[list(rows)]) in page
    rows = ("softmax learned", "sparse coding learned", "token graying learned")
    words = "attention leaves {:.1f} %, sparse coding {:.1f} %, token graying {:.1f} %"
    assert words.format(*error[list(rows)]) in page
    by_row = table[table.kind == "learned"].set_index(["row", "seed"])
    gain_by_seed = by_row["pretrained"] - by_row["from scratch"]
    found = {row: paired_difference(own) for row, own in gain_by_seed.groupby("row")}
    assert f"changes by {found['softmax']} points against random" in page
    assert f"Token graying changes by {found['token graying']}, inconclusive" in page


def test_costs_at_published_sizes():
    table, page = read_table("costs"), read_page("classification*.md")
    flops, speed = (
        table.pivot(index="size", columns="row", values=x) for x in ("flops", "inference")
    )
    ratios = flops.div(flops["softmax"], axis=0)
    for row in ("NeuTRENO", "GRC", "bilateral"):
        assert (ratios.loc[["DeiT-Ti", "DeiT-S", "CaiT-XXS24"], row] == 1).all()
    assert f"costs {ratios.bilateral['Swin-T']:.2f} times as many" in page
    assert f"up to {ratios.twicing.max():.2f} times the operations" in page
    times = (1 / speed["NeuTRENO"])[["DeiT-Ti", "DeiT-S", "CaiT-XXS24", "Swin-T"]]
    assert "takes {:.2f}, {:.2f}, {:.2f} and {:.2f} times as long".format(*times) in page


def test_weights_of_neutreno():
    table, page = read_table("classify-neutreno"), read_page("classification*.md")
    means = table.groupby("row", sort=False)[["token_cosine", "top1"]].mean()
    plain, *_, last = means.token_cosine
    assert f"a cosine of {last:.2f} at 1.5 where softmax has {plain:.2f}" in page
    assert means.token_cosine.iloc[3:].is_monotonic_decreasing
    assert (means.top1 - means.top1["softmax"]).abs().max() < 0.51
    verdicts = judge(differences(table)).values()
    assert all(each.words.startswith("inconclusive") for each in verdicts)


def test_sparse_attention_of_as_many_nonzeros():
    table, page = read_table("classify-sparsity"), read_page("classification*.md")
    halves = [each.apart.half_width for each in judge(differences(table)).values()]
    assert {each.words.split()[0] for each in judge(differences(table)).values()} == {
        "inconclusive"
    }
    assert f"inconclusive, at ± {min(halves):.2f} to ± {max(halves):.2f} points" in page
    rules = {
        "ViT:operator=TopK:n_largest=5": "to top-5,", "ViT:operator=TopK:n_largest=7": "to top-7,",
        "local": "to local attention",
    }  # fmt: skip
    apart = {
        row: paired_difference(hits(table, "sparse coding"), hits(table, row))
        for row in (*rules, "ViT:operator=criss_cross")
    }
    for row, words in rules.items():
        assert re.search(rf"{re.escape(str(apart[row]))} (points )?{words}", page)
    verdicts = judge(apart)
    criss_cross = verdicts.pop("ViT:operator=criss_cross")
    assert f"by {criss_cross.apart} points, p {criss_cross.cells[1]} after the" in page
    assert {each.words.split()[0] for each in verdicts.values()} == {"inconclusive"}
    shares = read_table("inspect-sparsity").groupby("model", sort=False).nonzero_mean
    (_, sparse, local, criss_cross, five, seven) = shares.mean()
    low, high = (getattr(shares, x)()["ViT-operator=sparse_coding"] for x in ("min", "max"))
    assert f"leaves {sparse:.2f} in" in page
    assert f"{low:.2f} to {high:.2f} by layer. There top-5 attention keeps {five:.2f}," in page
    assert f"local attention {local:.2f}, criss-cross and top-7 attention {seven:.2f}." in page
    assert criss_cross == seven
    means = table.groupby("row")[["token_cosine", "training"]].mean()
    apart = means.token_cosine - means.token_cosine["softmax"]
    assert f"by {apart['sparse coding']:.2f} and {apart['local']:.2f} of the cosine" in page
    assert f"trains at {means.training['sparse coding']:.2f} of softmax's speed" in page


def test_neutreno_on_other_kernels():
    table = read_table("classify-kernels")
    verdicts = judge(differences(table)).values()
    assert all(each.words.startswith("inconclusive") for each in verdicts)
    cosine = table.pivot(index="seed", columns="row", values="token_cosine")
    apart = {
        name: paired_difference(cosine[f"ViT:operator={name},correction=neutreno"], cosine[base])
        for name, base in (("kernel", "kernel"), ("elliptical", "elliptical"))
    }
    assert f"{apart['elliptical'].mean:.2f} of the cosine" in read_page("classification*.md")
    assert abs(apart["kernel"].mean) < 0.05
    linear = paired_difference(
        cosine["ViT:operator=linear,correction=neutreno"], cosine["ViT:operator=linear"]
    )
    assert abs(linear.mean) < linear.half_width


def test_token_graying():
    page = read_page("classification*.md")
    table, linear = read_table("classify-graying"), read_table("classify-linear")
    found = judge(differences(table))
    halves = [each.apart.half_width for each in found.values()]
    assert f"by SVD or DCT**: ± {min(halves):.2f} to ± {max(halves):.2f} points" in page
    equal = {row for row, each in found.items() if each.words == "equal within 1"}
    assert equal == {f"ViT:token_graying=svd:eps={eps}" for eps in (0.5, 0.7)}
    others = [each for row, each in found.items() if row not in equal]
    others += judge(differences(linear)).values()
    assert {each.words.split()[0] for each in others} == {"inconclusive"}
    worse = depth_differences(table, "log10_condition")
    first = [worse[f"ViT:token_graying=svd:eps={eps}"] for eps in (0.5, 0.7)]
    assert "changes by {} and {} by SVD at 0.5 and 0.7".format(*first) in page
    assert f"At best it changes by {min(worse.values(), key=lambda x: x.mean)}." in page
    own = depth_differences(linear, "log10_condition")
    second = [own[f"ViT:operator=linear,token_graying={kind}"] for kind in ("dct", "svd")]
    assert "by {} and {} on linear attention by DCT and SVD".format(*second) in page
    layers = read_table("inspect-graying")
    layers["row"] = layers.model.str.replace(r"-seed-\d", "", regex=True)
    layers["seed"] = layers.model.str[-1]
    rows = [f"ViT-token_graying={x}" for x in ("svd-eps=0.9", "svd-eps=0.7", "svd-eps=0.5")]
    rows.append("ViT-token_graying=dct-eps=0.5")
    for column, words in (
        ("jacobian_attention_condition", "in {}, {} and {} of 18 layers by SVD at 0.9, 0.7 and 0.5 "
         "and in {} by DCT at 0.5."),
        ("jacobian_block_condition", "included, has a lower one in {}, {}, {} and {}."),
    ):  # fmt: skip
        of_rows = layers.pivot(index=["seed", "layer"], columns="row", values=column)
        counts = of_rows[rows].lt(of_rows["ViT"], axis=0).sum()
        assert words.format(*counts) in page


def test_untrained_networks_of_published_sizes():
    page = read_page("inspection.md")
    means = read_table("untrained").groupby(["network", "operator", "layer"]).token_cosine.mean()
    ends = [means[name, "softmax", layer] for name in ("DeiT-Ti", "BERT-base") for layer in (0, 12)]
    words = (
        "from {:.3f} before the first layer to {:.3f} behind the last in DeiT-Ti. It rises from "
    )
    assert (words + "{:.3f} to {:.3f} in BERT.").format(*ends) in page
    last = [means[name, "NeuTRENO", 12] for name in ("BERT-base", "DeiT-Ti")]
    assert "the same weights: {:.3f} and {:.3f} behind the last layer".format(*last) in page


def test_scales_on_other_backbones():
    table, page = read_table("classify-backbones"), read_page("classification*.md")
    found = judge(differences(table))
    on_cait = [found[f"CaiT:{x}"].words for x in ("correction=attn_scale", "scale=FeatScale")]
    assert on_cait == ["equal within 1", "equal within 1"]
    halves = [found[f"Swin:{x}"] for x in ("correction=attn_scale", "scale=FeatScale")]
    assert all(each.words.startswith("inconclusive") for each in halves)
    widths = [each.apart.half_width for each in halves]
    assert "inconclusive, at ± {:.2f} and ± {:.2f}.".format(*widths) in page
    means = table.groupby("row").token_cosine.mean()
    words = (
        f"a mean cosine of {means['CaiT']:.2f} where a ViT has {means['softmax']:.2f}; FeatScale"
    )
    assert words in page
    moved = depth_differences(table, "token_cosine")["CaiT:scale=FeatScale"]
    assert f"a little together, {moved}." in page


def test_large_weights_of_neutreno():
    table = read_table("classify-neutreno-large")
    assert {each.words for each in judge(differences(table)).values()} == {"equal within 1"}
    means = table.groupby("row").token_cosine.mean()
    cosines = (f"{means[f'ViT:correction=neutreno:lam={lam}']:.2f}" for lam in ("1.0", "2.0"))
    assert "with a cosine of {} and {}.".format(*cosines) in read_page("classification*.md")


def test_locally_linear_and_low_rank_attention():
    table, page = read_table("classify-lle"), read_page("classification*.md")
    rows = [f"ViT:operator={name}" for name in ("locally_linear", "low_rank")]
    found, moved = judge(differences(table)), depth_differences(table, "token_cosine")
    assert all(found[row].words.startswith("inconclusive") for row in rows)
    widths = (found[row].apart.half_width for row in rows)
    assert "at ± {:.2f} and ± {:.2f} points. LLE".format(*widths) in page
    words = "LLE brings tokens together, {} of the cosine. Low-rank codes keep them apart, {}."
    assert words.format(*(moved[row] for row in rows)) in page
    speed = table.groupby("row").training.mean()[rows[0]]
    assert f"LLE trains at {speed:.2f} of softmax's speed" in page
