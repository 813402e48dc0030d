"""Resources of a node used by tasks."""

from hypothesis import given
from hypothesis import strategies as st

from ducats.utils.cluster.ray_pool import task_slots


@given(
    cpus=st.floats(0, 256, allow_subnormal=False),
    gpus=st.integers(0, 8),
    each=st.none() | st.integers(1, 64),
    on_gpus=st.booleans(),
)
def test_never_more_than_half_of_a_node(cpus: float, gpus: int, each: int | None, on_gpus: bool) -> None:
    count, resources = task_slots({"CPU": cpus, "GPU": gpus}, cpus_per_task=each, use_gpu=on_gpus)
    assert count * resources.cpus <= cpus / 2 * (1 + 1e-9)
    assert count * resources.gpus <= gpus
    assert resources.cpus <= 1 or resources.cpus == int(resources.cpus)  # accepted by Ray
    if cpus > 0 and not on_gpus:
        assert count >= 1
        assert resources.cpus > 0
