from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks import startup
from benchmarks.memory import Memory
from benchmarks.startup import ImportCost, StartCost, StreamCost
from openai_bls.output.detokenizer import tokenizer_json

_TIMES = """import time: self [us] | cumulative | imported package
import time:      9000 |       9000 | numpy
BEGIN
import time: self [us] | cumulative | imported package
import time:       500 |        500 |   asyncio.base_events
import time:      1500 |       2000 | asyncio
a warning in between
import time:      1000 |       3000 | starlette
"""


def test_import_times_by_package_after_the_beginning() -> None:
    total, count, packages = startup.parse_import_times(_TIMES)
    assert (total, count) == (3.0, 3)
    assert packages == {"asyncio": 2.0, "starlette": 1.0}


def test_a_model_is_imported_in_a_fresh_interpreter(tokenizer_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "postprocessing" / "1"
    folder.mkdir(parents=True)
    (folder / "tokenizer").symlink_to(tokenizer_dir)
    source = Path(startup.__file__).parents[1] / "model_repository" / "postprocessing" / "1" / "model.py"
    (folder / "model.py").write_text(source.read_text())
    cost = startup.import_cost(tmp_path, "postprocessing", 1)
    assert "openai_bls" in cost.top
    assert "numpy" not in cost.top


def test_a_vocabulary_of_any_size(tokenizer_dir: Path, tmp_path: Path) -> None:
    for model in ("preprocessing", "openai_bls"):
        folder = tmp_path / "from" / model / "1" / "tokenizer"
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text((tokenizer_dir / "tokenizer.json").read_text())
    copy = startup.enlarged_repository(tmp_path / "from", tmp_path, 2000)
    contents = {file.read_bytes() for file in copy.glob("*/1/tokenizer/tokenizer.json")}
    assert len(contents) == 1
    content = contents.pop()
    before = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer = Tokenizer.from_buffer(content)
    assert tokenizer.get_vocab_size(with_added_tokens=False) == 2000
    assert tokenizer.get_vocab_size() == 2000 + len(before.get_added_tokens_decoder())
    text = "Hi, ябв 中文 bade"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer_json.read(content) is not None


def test_the_tables() -> None:
    imports = [ImportCost("openai_bls", 123.4, 5.67, 89, {"asyncio": 12.3})]
    starts = [
        StartCost(
            s, {"tritonserver": s, "openai_bls": 0.5}, {"tritonserver": Memory(50, 40), "openai_bls": Memory(s, 9)}
        )
        for s in (3.0, 1.0, 2.0)
    ]
    streams = [StreamCost("chat", 500, {"openai_bls": [25.0, 26.0]}, {"openai_bls": [1.0, 1.5]})]
    text = startup.markdown(imports, starts, streams)
    assert "| openai_bls | 123 | 5.7 | 89 | asyncio 12.3 |" in text
    assert "Ready after 2.0 s (1.0–3.0)." in text
    assert "| tritonserver | 50.0 | 40.0 | 2.00 |" in text
    assert "| openai_bls | 2.0 | 9.0 | 0.50 |" in text
    assert "| openai_bls | 25.0 / 26.0 | 1.0 / 1.5 |" in text
