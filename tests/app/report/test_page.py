import base64
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import dmb
from app.report.making import photographs, recipe, table, trained, untrained
from dmb.app.records import best, read_bounds, read_metrics
from dmb.app.report import write_report
from dmb.app.report.symbols import printable
from dmb.app.runs import Run

SECTIONS = ["samples", "results", "curves", "likeness", "forward", "settings"]
VOID = {"meta", "br", "img", "hr"}
HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """What a browser would make of it: elements balanced, attributes and text collected."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.links, self.ids, self.sources, self.data, self.events = [], [], [], [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.links += [values[name] for name in ("href", "xlink:href") if name in values]
        self.sources += [values["src"]] if "src" in values else []
        self.ids += [values["id"]] if "id" in values else []
        self.events += [name for name in values if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.data.append(data)

    def text(self):
        return re.sub(r"\s+", " ", "".join(self.data))


def shades():
    return dmb.data.array(np.random.default_rng(0).integers(0, 5, (60, 3, 4)))


def images(folder):
    return trained(folder, recipe(init="uniform", objective="joint", schedule="canonical"), shades())


def masked_photographs(folder):
    data = dmb.data.images(photographs(folder.parent / "photos"), levels=5)
    return trained(folder, recipe(mask=True, order="descending", source=str(folder.parent / "photos")), data)


def masked_text(folder):
    file = folder.parent / f"{HOSTILE.replace('/', '')}.txt"
    file.write_text("<b>a & b</b>\n$x$ \"q\" 'r' " * 60)
    data = dmb.data.text(file, length=10)
    return trained(folder, recipe(mask=True, tied=True, floor=0.0, source=str(file)), data)


def scored_table(folder):
    rng = np.random.default_rng(1)
    rows = [
        [rng.choice(["red", "blue & green", HOSTILE]), rng.integers(1, 13), rng.integers(4), "always"]
        for _ in range(200)
    ]
    data = table(folder.parent, [f"<i>{HOSTILE}", "month", '" onload="x', "same"], rows)
    return trained(folder, recipe(head="score", source="table.csv"), data, evaluate=False)


def uniform_numbers(folder):
    data = dmb.data.array(np.random.default_rng(2).integers(0, 3, (60, 5)))
    return trained(folder, recipe(process="uniform"), data)


def tree_of_shades(folder):
    data = dmb.data.array(np.random.default_rng(6).integers(0, 8, (60, 3, 4)))
    return trained(folder, recipe(process="tree", grouping="value"), data)


RUNS = {
    make.__name__: make
    for make in (images, masked_photographs, masked_text, scored_table, uniform_numbers, tree_of_shades)
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every run, trained once, with its page; tests only read them."""
    made = {name: make(tmp_path_factory.mktemp(name) / "run") for name, make in RUNS.items()}
    return {name: (run, write_report(run).read_text(encoding="utf-8")) for name, run in made.items()}


@pytest.fixture(params=RUNS)
def case(request, runs):
    return runs[request.param]


@pytest.fixture
def copy(runs, tmp_path):
    """A run that a test may spoil."""

    def copied(name):
        shutil.copytree(runs[name][0].path, tmp_path / name)
        return Run.open(tmp_path / name)

    return copied


def page_of(run):
    return write_report(run).read_text(encoding="utf-8")


def headline(source):
    return re.sub("<.*?>", "", re.search(r'<p class="headline">(.*?)</p>', source, re.DOTALL)[1])


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_asks_nothing_of_the_network(case):
    _, source = case
    page = Page(source)
    assert "://" not in source
    assert not {"script", "link", "iframe", "object", "i>"} & set(page.tags)
    assert page.events == []
    assert "@import" not in source
    assert all(re.match(r"data:image/png;base64,|#", link) for link in page.links)
    assert all(link.startswith("data:image/png;base64,") for link in page.sources)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", source)) <= set(page.ids)


def test_the_page_has_its_sections_in_order(case):
    page = Page(case[1])
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert page.links[: len(SECTIONS)] == [f"#{name}" for name in SECTIONS]


def test_numbers_are_those_of_the_run(case):
    run, source = case
    text, records = Page(source).text(), read_metrics(run.path)
    lowest = min((record for record in records if record.phase == "validation"), key=lambda record: record.bits)
    assert best(records) == lowest
    for result in [lowest, *read_bounds(run.path).values()]:
        assert f"{result.bits:.4f} ± {result.stderr:.4f}" in text
    for result in read_bounds(run.path).values():
        assert f"{result.unigram_bits:.4f}" in text
        assert f"{100 * (1 - result.bits / result.unigram_bits):.1f} %" in text
        assert f"{result.sequences} of {result.of_sequences}" in text
    assert f"{records[-1].tokens:,} tokens" in text
    assert f"{sum(p.numel() for p in run.bridge().network.parameters()):,} parameters" in text


def test_settings_are_folded_away_and_all_there(runs):
    run, source = runs["images"]
    folded = Page(re.search(r"<details>.*?</details>", source, re.DOTALL)[0]).text()
    for part, values in run.recipe.to_json().items():
        for name, value in values.items() if isinstance(values, dict) else []:
            assert f"{part}.{name} {value}" in folded


def test_the_headline_is_the_bound_on_test_data_or_else_the_best_on_validation_data(runs):
    for name, split in (("images", "test"), ("scored_table", "validation")):
        run, source = runs[name]
        shown = headline(source)
        bits = read_bounds(run.path)["test"].bits if split == "test" else best(read_metrics(run.path)).bits
        assert shown.startswith(f"{bits:.4f} ± ")
        assert f"on {split} data" in shown
    assert f"alone need {shades().unigram_bits(shades().test):.4f}: " in headline(runs["images"][1])
    assert "Run “dmb evaluate” for the bound on test data" in runs["scored_table"][1]
    assert "Run “dmb evaluate”" not in runs["images"][1]


def test_an_evaluation_of_an_earlier_model_is_called_outdated_and_is_no_headline(copy):
    run = copy("uniform_numbers")
    results = json.loads((run.path / "evaluation.json").read_text())
    results["test"]["step"] -= 1
    (run.path / "evaluation.json").write_text(json.dumps(results))
    source = page_of(run)
    assert "on validation data" in headline(source)
    assert "outdated" in source


def test_image_quality_is_shown_if_it_was_evaluated(copy):
    run = copy("uniform_numbers")
    assert "FID" not in page_of(run)
    result = {"split": "test", "fid": 12.345, "floor": 5.0, "real": 3.0, "images": 1000, "sampler": "ancestral",
              "calls": 64, "step": best(read_metrics(run.path)).step, "seed": 0, "num_features": 9}  # fmt: skip
    (run.path / "evaluation.json").write_text(json.dumps({"images": {"test": result}}))
    text = Page(page_of(run)).text()
    assert (
        "12.35 of 1,000 samples to test images (ancestral, 64 calls); training images 3.00, after the codec 5.00"
        in text
    )
    assert "outdated" not in text
    older = {"steps" if name == "calls" else name: value for name, value in result.items()}
    (run.path / "evaluation.json").write_text(json.dumps({"images": {"test": older}}))
    assert "(ancestral, 64 calls)" in Page(page_of(run)).text()


@pytest.mark.long
def test_the_tokenizer_of_codes_is_shown_if_its_summary_is_there(copy):
    run = copy("images")
    (run.path / "vqvae").mkdir()
    Image.fromarray(np.full((4, 6, 3), 77, dtype=np.uint8)).save(run.path / "vqvae" / "sheet.png")
    assert "Tokenizer" not in page_of(run)
    summary = {"psnr": 21.987, "perplexity": 300.44, "codes": 512, "adversarial_steps": 2000, "images": 1000}
    (run.path / "vqvae" / "summary.json").write_text(json.dumps(summary))
    page = Page(page_of(run))
    assert "PSNR 21.99 dB over test images; 512 codes, perplexity 300.4." in page.text()
    assert "For its last 2,000 steps the decoder alone learned" in page.text()
    sheets = [Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) for source in page.sources]
    assert sum(sheet.size == (6, 4) and bool((np.asarray(sheet) == 77).all()) for sheet in sheets) == 1


# -- what data may hold -----------------------------------------------------------------------------------------------


def test_a_script_in_data_file_names_and_column_names_is_only_text(runs):
    for name in ("masked_text", "scored_table"):
        source = runs[name][1]
        assert "<script" not in source
        assert "&lt;script&gt;" in source
    assert "<i>&lt;" not in runs["scored_table"][1]
    assert '" onload=' not in runs["scored_table"][1]


def test_a_script_in_the_name_of_a_recipe_is_only_text(copy):
    run = copy("uniform_numbers")
    run.change(replace(run.recipe, name=HOSTILE))
    source = page_of(run)
    assert "<script" not in source
    assert f"<h1>{HOSTILE.replace('<', '&lt;').replace('>', '&gt;')}: array</h1>" in source


def test_text_reads_as_it_is_whatever_its_symbols(runs):
    run, source = runs["masked_text"]
    blocks = re.findall(r"<pre>\n(.*?)</pre>", source, re.DOTALL)
    shown = ["".join(Page(f"<p>{block}</p>").data) for block in blocks]
    examples = run.codec.decode(run.summary()["examples"])[:10]
    assert shown[-len(examples) :] == examples
    assert "<b>a" not in source


def test_halves_of_surrogate_pairs_and_control_characters_become_printable():
    assert printable("a\ud800\x07\n") == "a?␇\n"
    assert printable("\n\t\x7f\x85é", "↵⇥") == "↵⇥␡�é"


@pytest.mark.parametrize("symbols", ["\x00\x07\x1b", "\r\n\t\u2028"])
def test_symbols_that_no_page_can_hold_are_replaced(tmp_path, symbols):
    codec = dmb.data.Characters(symbols + "ab")
    tokens = np.random.default_rng(0).integers(0, codec.num_states, (60, 6))
    data = replace(dmb.data.array(tokens, num_states=codec.num_states), codec=codec)
    source = page_of(untrained(tmp_path / "run", recipe(), data, [{}]))
    assert Page(source).open == []
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", source)


def test_every_column_of_a_wide_table_is_on_the_page(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"<c{k}>" for k in range(50)]
    data = table(tmp_path, names, rng.integers(0, 3, (60, 50)))
    source = page_of(untrained(tmp_path / "run", recipe(), data, [{}]))
    for name in names:  # forward, reverse, data, samples, marginals
        assert source.count(f">{name.replace('<', '&lt;').replace('>', '&gt;')}<") == 5
    assert max(row.count("<td>") for row in source.split("<tr>")) <= 11


# -- trajectories and samples -----------------------------------------------------------------------------------------


def test_masks_are_shown_as_such(runs):
    path = re.search(r'<div class="piece path">.*?<dl>(.*?)</dl>', runs["masked_text"][1], re.DOTALL)[1]
    lines = re.findall("<dd>(.*?)</dd>", path, re.DOTALL)
    assert len(lines) == 8
    assert "▒" not in lines[0]
    assert lines[-1].count("▒") >= 9  # of 10 tokens, each masked but with a chance of 0.001
    assert '<span class="mask">▒' in lines[-1]
    assert "Orange: masked." in runs["masked_text"][1]
    assert "Grey: tokens that differ" not in runs["masked_text"][1]  # none but masks
    assert "Grey: tokens that differ" in runs["scored_table"][1]
    assert "Orange: masked." in runs["masked_photographs"][1]
    assert "Orange: names of groups of states." in runs["tree_of_shades"][1]
    assert "masked" not in runs["uniform_numbers"][1]


def test_images_are_shown_as_they_are(runs):
    run, source = runs["images"]
    samples, examples, *strips = Page(source).sources
    assert len(strips) == 16

    def opened(address):
        with Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))) as image:
            return np.asarray(image)

    first = run.summary()["examples"][:4].view(4, 3, 4).numpy() * 255 // 4
    column = opened(strips[0])
    assert column.shape == (4 * 3 + 3, 4, 3)
    for index, image in enumerate(first):
        np.testing.assert_array_equal(column[4 * index : 4 * index + 3], image[..., None].repeat(3, 2))
    np.testing.assert_array_equal(opened(examples)[:3, :4], first[0][..., None].repeat(3, 2))
    assert opened(samples).shape == (8 * 4 - 1, 8 * 5 - 1, 3)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_page_and_progress_runs_to_its_end(runs, copy):
    run, calls = copy("uniform_numbers"), []
    (run.path / "report.html").unlink()
    path = write_report(run, progress=lambda done, total: calls.append((done, total)))
    assert path == run.path / "report.html"
    assert path.read_text(encoding="utf-8") == runs["uniform_numbers"][1]
    assert [done for done, _ in calls] == list(range(len(calls)))
    assert {total for _, total in calls} == {len(calls) - 1}
    assert write_report(run, seed=1).read_text(encoding="utf-8") != runs["uniform_numbers"][1]


def test_a_run_without_a_model_is_refused_and_nothing_is_written(copy):
    run = copy("images")
    (run.path / "model.safetensors").unlink()
    (run.path / "report.html").unlink()
    with pytest.raises(ValueError, match="has no model yet"):
        write_report(run)
    assert not (run.path / "report.html").exists()


def test_a_run_that_goes_on_has_a_page_from_its_first_evaluation_on(copy):
    run = copy("images")
    (run.path / "evaluation.json").unlink()
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if '"validation"' in line)
    (run.path / "metrics.jsonl").write_text("".join(lines[: first + 1]) + '{"phase": "sco')
    source = page_of(run)
    assert "on validation data" in headline(source)
    assert "Bound on validation data" not in source  # a single dot


@pytest.mark.parametrize("damage", ["nan", "none", "empty"])
def test_missing_numbers_are_dashes_and_sections_without_any_are_left_out(copy, damage):
    run = copy("masked_text" if damage == "nan" else "uniform_numbers")
    bad = math.nan if damage == "nan" else None
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    records = [] if damage == "empty" else [
        {name: bad if isinstance(value, float) else value for name, value in record.items()} for record in lines
    ]  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = json.loads((run.path / "evaluation.json").read_text())["test"]
    spoiled = {"test": {name: bad if isinstance(value, float) else value for name, value in result.items()}}
    (run.path / "evaluation.json").write_text(json.dumps({} if damage == "empty" else spoiled))
    page = Page(page_of(run))
    assert [name for name in page.ids if name in SECTIONS] == [
        name for name in SECTIONS if name not in ("curves", *(["results"] if damage == "empty" else []))
    ]
    assert "No bound has been computed yet" in page.text()
    assert "nan" not in page.text().lower()


def test_an_evaluation_of_one_sequence_has_no_error(copy):
    run = copy("uniform_numbers")
    results = json.loads((run.path / "evaluation.json").read_text())
    results["test"] |= {"bits": 1.25, "stderr": None}
    (run.path / "evaluation.json").write_text(json.dumps(results))
    assert headline(page_of(run)).startswith("1.2500 bits per token on test data")
    results["test"] |= {"bits": 2 * run.about["unigram_bits"]["test"]}
    (run.path / "evaluation.json").write_text(json.dumps(results))
    assert headline(page_of(run)).endswith(": 100.0 % less")  # the marginals alone need less


def test_importing_reports_or_comparisons_loads_nothing_that_draws_and_what_is_missing_is_named():
    code = """
import sys
import dmb.app.report
assert not {"matplotlib", "jinja2", "dmb.app.report.figures"} & set(sys.modules)
import dmb.app.compare
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    dmb.app.report.write_report(None)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a report needs matplotlib, which is missing: pip install matplotlib\n"


# -- many states ------------------------------------------------------------------------------------------------------

MANY = 50_257


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and 0 not in tensor.stride():
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("tied", [False, True], ids=["by position", "tied"])
@pytest.mark.usefixtures("no_type_checks")
def test_with_very_many_states_nothing_large_is_made(tmp_path, tied):
    rng = np.random.default_rng(3)
    data = dmb.data.array(rng.integers(0, MANY, (40, 2)) * (rng.random((40, 2)) < 0.5), num_states=MANY)
    rates = (np.geomspace(1, 2, MANY - 1) * np.array([[1.0], [3.0]])).tolist()
    run = untrained(tmp_path / "run", recipe(init="uniform", tied=tied), data, [{"alpha": rate} for rate in rates])
    with Largest() as largest:
        source = page_of(run)
    assert largest.numbers <= 2**22  # of the posterior of all samples
    assert "Only the 200 most frequent states are shown." in source
    assert "Learned rates that moved most" in source
    assert source.count("<span>others</span>") == 1
    assert len(source) < 2e6
