"""Resources of a node used by tasks."""

from hypothesis import given
from hypothesis import strategies as st

from ducats.cluster.ray_pool import task_slots


@given(
    cpus=st.floats(0, 256, allow_subnormal=False),
    gpus=st.integers(0, 8),
    each=st.none() | st.integers(1, 64),
    on_gpus=st.booleans(),
)
def test_never_more_than_half_of_a_node(cpus: float, gpus: int, each: int | None, on_gpus: bool) -> None:
    count, place = task_slots({"CPU": cpus, "GPU": gpus}, cpus_per_task=each, use_gpu=on_gpus)
    assert count * place.cpus <= cpus / 2 * (1 + 1e-9)
    assert count * place.gpus <= gpus
    assert place.cpus <= 1 or place.cpus == int(place.cpus)  # accepted by Ray
    if cpus > 0 and not on_gpus:
        assert count >= 1
        assert place.cpus > 0
