"""The file of a batch's jobs: what a job may say, and what is refused of a table."""

import json

import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.many.jobs import read_jobs
from lingbot_world.headless.options import GenerateOptions


@pytest.fixture
def read(tmp_path):
    """The jobs in a text, with options of the command."""

    def read(text, name="jobs.jsonl", **options):
        (tmp_path / name).write_text(text, encoding="utf-8")
        defaults = GenerateOptions(ckpt_dir="x", prompt="", output="x", **options)
        return read_jobs(tmp_path / name, defaults, tmp_path)

    return read


def test_a_jobs_own_size_counts_where_the_command_names_width_and_height(read):
    (job,) = read('{"prompt": "a", "size": "96*128"}', width=64, height=64)
    assert (job.options.width, job.options.height, job.options.max_area) == (None, None, 96 * 128)
    (job,) = read('{"prompt": "a", "size": "96*128", "width": 32, "height": 48}', width=64, height=64)
    assert (job.options.width, job.options.height) == (32, 48)


def test_what_is_null_is_left_out_and_paths_are_relative_to_the_file(read, tmp_path):
    (job,) = read('{"prompt": "a", "seed": null, "image": null, "name": null, "low": "low", "vae": "/vae.pth"}', seed=3)
    assert (job.name, job.options.seed, job.options.image) == ("00001", 3, None)
    assert (job.options.low, job.options.vae) == (str(tmp_path / "low"), "/vae.pth")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere.jsonl: cannot be read"):
        read_jobs(tmp_path / "nowhere.jsonl", GenerateOptions(ckpt_dir="x", prompt="", output="x"), tmp_path)


def test_paths_may_begin_with_ones_own_folder(read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    (job,) = read('{"prompt": "a", "image": "~/a.png", "action_path": "~/walk"}')
    assert (job.options.image, job.camera) == ("/home/me/a.png", ("action_path", "/home/me/walk"))


@pytest.mark.parametrize("chunk", ["2", '"2"'])
def test_a_job_may_have_a_chunk(read, chunk):
    assert read(f'{{"prompt": "a", "chunk": {chunk}}}')[0].options.chunk == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": ["a", "b"]}', r"prompt \['a', 'b'\]: expected text"),
        ('{"prompt": true}', "prompt True: expected text"),
        ('{"prompt": "a\\ud800"}', "`prompt` is not UTF-8 text: character 2"),
        ('{"prompt": "a", "image": {}}', "image {}: expected text"),
        ('{"prompt": "a", "image": ""}', "a path is empty; name one, or leave it out"),
        ('{"prompt": "a", "seed": 1e400}', "seed inf: expected a whole number"),
        ('{"prompt": "a", "schedule": [1e400]}', r"schedule \[inf\]: expected a number"),
        ('{"prompt": "a", "guide_scale": true}', "guide_scale True: expected a number"),
        (f'{{"prompt": "a", "name": "{"ü" * 101}"}}', "is too long for a file's: 202 bytes, at most 200"),
        (f'{{"prompt": "a", "seed": {"9" * 5000}}}', "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_values_that_no_option_takes_are_refused(read, line, said):
    with pytest.raises(InputError, match=f"jobs.jsonl, line 1: .*{said}"):
        read(line)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('image,prompt\na.png,"a\na.png,b\n', r"line \d: not a table \(unexpected end of data\); a quoted text begins"),
        ('image,prompt\na.png,"a" "b"\n', r"line \d: not a table"),
        (f"image,prompt\na.png,{'a' * 140_000}\n", r"line \d: not a table .field larger"),
        ("image;prompt\na.png;a\n", "line 1: 'image;prompt' is one column; write commas between columns"),
        ("image\tprompt\na.png\ta\n", "is one column; write commas between columns"),
        ("image,prompt,image\na.png,a,b.png\n", "line 1: two columns are called 'image'; leave one out"),
        ("image,prompt\na.png,A street, at night\n", "line 2: more values than columns; quote texts with commas"),
    ],
)
def test_a_table_that_is_read_otherwise_than_meant_is_refused(read, table, said):
    with pytest.raises(InputError, match=f"jobs.csv, {said}" if said.startswith("line") else said):
        read(table, "jobs.csv")


def test_names_that_are_one_file_on_other_systems_are_refused(read):
    lines = (f'{{"prompt": "a", "image": "x", "name": "{name}"}}' for name in ("Same", "same"))
    with pytest.raises(InputError, match="line 2: a second job is called 'same', and one 'Same', which is the same f"):
        read("\n".join(lines))


@pytest.mark.parametrize("name", ["con", "NUL.2", "com1", "a.", "a:b", "a?"])
def test_names_that_no_file_may_have_on_windows_are_refused(read, name):
    with pytest.raises(InputError, match="cannot be a file's"):
        read(json.dumps({"prompt": "a", "image": "x", "name": name}), "jobs.jsonl")


def test_blank_lines_of_a_table_are_passed_over(read):
    jobs = read("\ufeffprompt,seed\r\na,1\r\n\r\n  \r\n , \r\nb,2\r\n", "jobs.csv")
    assert [(job.name, job.options.prompt, job.options.seed) for job in jobs] == [("00002", "a", 1), ("00006", "b", 2)]


def test_a_list_that_was_written_on_windows(read, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.png").touch()
    (tmp_path / "b\\c.png").touch()
    rows = [r"photos\a.png", r"b\c.png", r"C:\Users\me\a.png"]
    jobs = read("\n".join(json.dumps({"prompt": "a", "image": row}) for row in rows))
    paths = [str(tmp_path / "photos/a.png"), str(tmp_path / "b\\c.png"), r"C:\Users\me\a.png"]
    assert [job.options.image for job in jobs] == paths
