"""The model card: front matter that the Hub can read, sentences that are true, a snippet that runs."""

import html
import re

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import dmb
from app.report.making import recipe, table, trained, untrained
from commands import dmb_
from dmb.app.records import read_bounds
from dmb.app.report.card import code, escaped, render, write_card
from dmb.app.runs import Run

HOSTILE = "a|b`` `<script>alert(1)<\n---\nlicense: gpl\n# _x_ {{ 7*7 }} [l](https:x) ```\n# y.npy"


def array(folder, states=3):
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, states, (100, 4)))
    return dmb.data.array(folder / "tokens.npy")


def front_matter(text):
    return yaml.safe_load(text.split("---\n")[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    trained(folder, recipe(source="tokens.npy", mask=True, floor=0.0), array(folder.parent))
    return folder


def test_front_matter_is_what_the_hub_expects(folder):
    text = render(Run.open(folder), "mit")
    card, values = ModelCard(text), front_matter(text)
    assert values["library_name"] == "dmb"
    assert values["license"] == card.data.license == "mit"
    (result,) = card.data.eval_results
    assert result.metric_value == round(read_bounds(folder)["test"].bits, 4)
    assert (result.dataset_name, result.dataset_split, result.metric_type) == ("tokens.npy", "test", "bits_per_token")


def test_the_bound_is_that_of_the_evaluation_with_its_error_and_command(folder):
    text, bound = render(Run.open(folder)), read_bounds(folder)["test"]
    assert f"**{bound.bits:.4f} ± {bound.stderr:.4f} bits per token** on test data" in text
    assert "`dmb evaluate first --split test --samples 1 --seed 0`" in text
    assert "not been evaluated" not in text


def test_an_evaluation_of_another_model_does_not_count(folder, tmp_path):
    run = untrained(tmp_path / "run", recipe(), array(tmp_path), [{}])
    text = render(run)
    assert "has not been evaluated yet; `dmb evaluate run`" in text
    assert "model-index" not in front_matter(text)
    (run.path / "evaluation.json").write_text((folder / "evaluation.json").read_text())  # of step 4, not 0
    assert render(run) == text


def test_the_python_of_the_card_runs_in_the_folder(folder, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", render(Run.open(folder)), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(folder)
    exec("\n".join(blocks), {})
    first, *samples = capsys.readouterr().out.splitlines()
    assert first == "torch.Size([4, 4])"
    assert len(samples) == 4


@pytest.mark.parametrize(("process", "says"), [
    ({"mask": True, "floor": 0.0}, "Masked diffusion: positions are masked one by one, and"),
    ({"network": "ordered", "mask": True, "floor": 0.0, "write_order": "learned"}, "each at a speed of its own"),
    ({"network": "ordered", "mask": True, "floor": 0.0}, "one by one in an order of kind Random, and"),
    ({"process": "uniform"}, "Uniform noise"),
    ({"process": "tokenwise"}, "GenMD4"),
    ({"process": "tree", "grouping": "value"}, "names of clusters in a tree, by steady clocks"),
    ({"process": "varying"}, "states in a line, lifted to higher ranks by clocks that vary in time"),
])  # fmt: skip
def test_it_says_what_the_process_is(tmp_path, process, says):
    assert says in render(untrained(tmp_path / "run", recipe(**process), array(tmp_path, 4)))


@pytest.mark.parametrize(("rates", "says"), [
    ([1.0, 2.0], r"Learned: rates (1 of 2 changed, by a factor of up to 3)"),
    ([1.0, 0.67], "Training did not change it."),
])  # fmt: skip
def test_it_says_whether_rates_were_learned(tmp_path, rates, says):
    records = [{"alpha": [1.0, 2 / 3]}, {"alpha": rates}]
    assert says in render(untrained(tmp_path / "run", recipe(), array(tmp_path), records)).replace("\\", "")


def test_hostile_names_break_nothing(tmp_path):
    data = table(tmp_path, ["x|y", "<script>#", "`c"], [["<b>", "|", "*i*"], ["{{ x }}", "_", "``"]] * 40)
    run = untrained(tmp_path / "a`b\n---\nx", recipe(source=HOSTILE), data)
    text = render(run)
    assert ModelCard(text).data.to_dict().keys() == {"library_name", "tags"}
    page = MarkdownIt().enable("table").render(text.split("---\n\n", 1)[1])
    assert "<script" not in page
    assert page.count("<h1>") == 1
    assert 'href="https:x"' not in page
    assert "{{ 7*7 }}" in page


@pytest.mark.parametrize("text", ["plain", "a|b*c*", "`` ` ``", "<b>&amp;</b>", "[x](y) ![z](w) # - \\ ~~s~~ $m$"])
def test_escaped_text_reads_as_it_was(text):
    for markdown in (escaped(text), code(text)):
        page = MarkdownIt().enable("strikethrough").render(markdown)
        assert html.unescape(re.sub("<[^>]*>", "", page)).strip() == text


def test_the_command_writes_it_and_asks_for_a_licence(folder, capsys):
    assert dmb_("card", folder) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(folder / "README.md")
    assert "states no licence" in said.err
    assert "license" not in front_matter((folder / "README.md").read_text())
    assert dmb_("card", folder, "--license", "cc-by-4.0") == 0  # over its own file
    assert front_matter((folder / "README.md").read_text())["license"] == "cc-by-4.0"
    assert dmb_("card", folder, "--license", "MIT: no") == 2
    assert "license must be an identifier" in capsys.readouterr().err


def test_a_file_of_the_users_stays(folder, tmp_path):
    own = tmp_path / "README.md"
    own.write_text("mine")
    with pytest.raises(ValueError, match="was not written by dmb card"):
        write_card(Run.open(folder), own)
    assert own.read_text() == "mine"


def test_the_card_goes_wherever_the_model_is_saved(folder, tmp_path):
    written = write_card(Run.open(folder), licence="mit").read_text()
    dmb.Bridge.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "README.md").read_text() == written


def test_a_model_without_a_card_gets_one_with_the_same_tags(tmp_path):
    process = dmb.BridgeProcess.from_marginals(dmb.data.digits().marginals())
    dmb.MarkovBridge(process, dmb.MLP(process, width=8)).save_pretrained(tmp_path)
    values = front_matter((tmp_path / "README.md").read_text())
    assert values["library_name"] == "dmb"
    assert {"discrete-diffusion", "discrete-markov-bridge"} <= set(values["tags"])
