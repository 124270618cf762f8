"""What the papers say of their own tables, against the printed cells."""

import tomllib
from pathlib import Path

import numpy as np

PUBLISHED = Path(__file__).parents[2] / "docs" / "published"


def printed_rows(paper, id_):
    items = tomllib.loads((PUBLISHED / f"{paper}.toml").read_text())["item"]
    (found,) = (item for item in items if item["id"] == id_)
    return found["printed"]["rows"]


def test_bilateral_attention_is_ahead_in_two_four_and_four_of_five_tasks():
    """Section V-B of IF says "4 of 5", for the Transformer too."""
    cells = np.array([row[2:] for row in printed_rows("IF", "IF-Table-I")]).reshape(5, 3, 3)
    plain, alibi, bilateral = cells.transpose(2, 1, 0)
    assert ((bilateral > plain) & (bilateral > alibi)).sum(axis=1).tolist() == [2, 4, 4]


def test_bilateral_attention_gains_most_on_listops_and_not_in_retrieval():
    """Section V-B of IF finds it "particularly evident" in Retrieval."""
    rows = printed_rows("IF", "IF-Table-I")
    cells = np.array([row[2:] for row in rows]).reshape(5, 3, 3)
    best = (cells[..., 2] - cells[..., 0]).argmax(axis=0)
    assert [rows[i][0] for i in best] == ["ListOps (2K)"] * 3


def test_operations_of_cait_in_table_3_are_those_of_swin_in_table_1():
    """A slip of AO: Table 1 has others for the same network."""
    third = [row[3] for row in printed_rows("AO", "AO-Table-3") if "CaiT-S" in row[0]]
    first = {
        backbone: [row[4] for row in printed_rows("AO", "AO-Table-1") if row[0] == backbone]
        for backbone in ("CaiT", "Swin")
    }
    assert third == first["Swin"]
    assert third != first["CaiT"]


def accuracies_of_table_2():
    return {row[1]: row[-1] for row in printed_rows("AO", "AO-Table-2")}


def test_swin_and_cait_with_the_scales_lead_the_transformers_of_table_2():
    """As the text of AO reads it; LV-ViT-S, which has convolutions, is ahead of CaiT."""
    top = accuracies_of_table_2()
    kinds = {row[1]: row[0] for row in printed_rows("AO", "AO-Table-2")}
    others = max(top[name] for name, kind in kinds.items() if kind == "Transformer")
    assert max(top, key=top.get) == "Swin-S + FeatScale"
    assert min(top["Swin-S + AttnScale"], top["CaiT-S + AttnScale"]) > others
    assert top["CaiT-S + AttnScale"] == top["CaiT-S + FeatScale"] > top["CVT-21"]
    assert top["CaiT-S + FeatScale"] > top["ResNet-152"]
    assert top["LV-ViT-S"] > top["CaiT-S + FeatScale"]


def test_twice_the_depth_alone_does_not_beat_the_teacher_of_table_2():
    """The plain DeiT-S of 24 layers stands in Table 1."""
    top = accuracies_of_table_2()
    (plain,) = (
        row[6] for row in printed_rows("AO", "AO-Table-1") if row[1] == "DeiT-S" and row[2] == 24
    )
    assert top["DeiT-S + FeatScale"] > top["DeiT-S Distilled"] > plain > top["ViT-B/16"]
