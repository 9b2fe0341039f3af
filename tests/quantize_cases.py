"""What the tests of quantizing share."""

from contextlib import contextmanager

from lingbot_world.quantize import QuantizeOptions, plan_quantize, quantize


@contextmanager
def silent(_name, _unit):
    yield lambda _done, _total: None


def run(source, destination, **options):
    """Quantize on the CPU, so that every machine writes the same bytes."""
    return quantize(plan_quantize(source, destination, QuantizeOptions(device="cpu", **options)), silent)
