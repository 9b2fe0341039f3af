"""What the command says where it refuses something."""

from lingbot_world.headless.command.cli import main


def refusal(arguments, capsys):
    """The one line that a refused command says."""
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as error:  # of words that cannot be read
        code = error.code
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith("lingbot-world: ")
    return said
