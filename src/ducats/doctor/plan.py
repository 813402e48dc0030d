"""Check the run plan against data and machine: evaluation, budget, batches, crops and memory."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ducats.budget import PeopleTime, split_budget, time_of
from ducats.config import Config, ViewConfig, query_epochs
from ducats.data.decoding import RESERVED_DISK_GB
from ducats.data.evaluation_split import n_held_out, resolve_split
from ducats.doctor.finding import Finding, gather, images
from ducats.doctor.found import Role, Survey
from ducats.doctor.pixels import asked_pixels, check_pixels
from ducats.errors import UserError
from ducats.records import MEASURED_ON
from ducats.room import free_disk_gb, free_memory_gb

LOOKED_AT: dict[str, Role] = {  # the images that each view is applied to
    "source": "source",
    "labelled": "target",
    "unlabelled": "target",
    "scoring": "target",
    "test": "test",
}


BACKBONES = {"timm": "resnet50", "deeplab_v2": "resnet101", "deeplab_v3plus": "resnet101"}  # defaults


def check_plan(config: Config, found: Survey) -> list[Finding]:
    """Run all checks of the plan against the surveyed data."""
    checks = (
        _check_exam(config, found),
        _check_budget(config, found),
        _check_batches(config, found),
        _check_crops(config, found),
        _check_sides(config, found),
        _check_weights(config),
        _check_memory(found),
        check_pixels(config, found),
    )
    return [finding for check in checks for finding in gather(check)]


def _check_sides(config: Config, found: Survey) -> Iterator[Finding]:
    """Check that all views have the same size. Segmentation models accept any size."""
    if found.of_pixels:
        return
    views = {name: getattr(config.views, name) for name in LOOKED_AT}
    stored = {role: shape[-1] for role, shape in found.shapes.items()}
    sides = {
        name: view.size or stored.get(LOOKED_AT[name], "stored")
        for name, view in views.items()
        if view is not None
    }
    if len(set(sides.values())) > 1:
        seen = ", ".join(f"views.{name} {side}" for name, side in sides.items())
        yield Finding(
            "warning", f"views produce images of different sizes ({seen}); give all views the same size"
        )


def _check_weights(config: Config) -> Iterator[Finding]:
    """Report where pretrained weights come from."""
    name, params = config.model.name, config.model.params
    if name in BACKBONES and params.get("pretrained", True) and not params.get("weights"):
        backbone = str(params.get("backbone", BACKBONES[name]))
        with suppress(Exception):  # torchvision cannot be imported, which is reported elsewhere
            from ducats.models import offline

            if offline.serves(backbone):
                said = f"the weights of timm's {backbone} come from the package {offline.PACKAGE}"
                yield Finding("note", said)
                return
        yield Finding("note", f"the weights of timm's {backbone} are downloaded on first use")


def _check_exam(config: Config, found: Survey) -> Iterator[Finding]:
    """Report which images the model is evaluated on."""
    if found.truth is None:
        return  # the problem with the data is reported elsewhere
    wanted = config.evaluation.split
    on, _ = resolve_split(
        wanted,
        has_test="test" in found.parts,
        has_ground_truth=found.truth,
        target_is_test=found.target_is_test,
    )
    if on != "held_out" or "test" in found.parts or found.truth:
        yield Finding("note", f"the model is evaluated on {MEASURED_ON[on]} (evaluation.split={wanted})")


def pool_size(config: Config, found: Survey) -> int:
    """Return the number of target images that can be queried: those that are not held out."""
    part = found.parts.get("target")
    if part is None or found.truth is None:
        return 0 if part is None else len(part)
    try:
        _, made = resolve_split(
            config.evaluation.split,
            has_test="test" in found.parts,
            has_ground_truth=found.truth,
            target_is_test=found.target_is_test,
        )
    except UserError:
        return len(part)  # reported elsewhere
    if made != "split":
        return len(part)
    if found.of_pixels:
        return len(part) - n_held_out(len(part), config.evaluation.test_fraction)
    known = (found.parts["test"] if found.target_is_test else part).classes().values()
    return len(part) - sum(n_held_out(members, config.evaluation.test_fraction) for members in known)


def _check_budget(config: Config, found: Survey) -> Iterator[Finding]:
    """Describe the label budget: how many labels, when, and who provides them."""
    oracle = config.oracle.name
    if oracle == "ground_truth" and found.truth is False:
        yield Finding(
            "error",
            "the oracle 'truth' needs the target's labels, but the data has none: use --oracle human, or "
            "--ground-truth if the target's folders are its classes",
        )
    after, pool = query_epochs(config), pool_size(config, found)
    if not after:
        yield Finding("note", "no labels are queried (acquisition.rounds is 0)")
    if not after or not pool:
        return
    time = time_of(config.acquisition.budget, config.acquisition.seconds_per_label, config.acquisition.growth)
    if time is not None:
        yield from _asked_time(config, found, pool, time)
        return
    if found.of_pixels and config.task.resolved_unit != "image":
        yield from asked_pixels(config, found, pool, after)
        return
    labels = split_budget(
        config.acquisition.budget, pool, len(after), config.acquisition.rounding, config.acquisition.growth
    )
    spread = f"{labels[0]}" if len(set(labels)) == 1 else " + ".join(map(str, labels))
    each = " per round" if len(labels) > 1 and len(set(labels)) == 1 else ""
    epochs = ", ".join(map(str, after))
    what = "whole images" if found.of_pixels else "labels"
    yield Finding(
        "note",
        f"the budget is {sum(labels)} {what} from {images(pool)} of the target: {spread}{each} "
        f"after epoch {epochs} of {config.train.epochs}",
    )
    if oracle == "human" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"human annotators provide {spread} {what}{each}, "
            f"in {len(labels)} {'round' if len(labels) == 1 else 'rounds'}; the run pauses each time",
        )


def _asked_time(config: Config, found: Survey, pool: int, time: PeopleTime) -> Iterator[Finding]:
    """Describe a time budget, with an estimate of the first round."""
    after = query_epochs(config)
    epochs, rounds = ", ".join(map(str, after)), "1 round" if len(after) == 1 else f"{len(after)} rounds"
    what = f"{config.task.resolved_unit}s" if found.of_pixels else "labels"
    first = time.questions(None, 0, 0, len(after))
    yield Finding(
        "note",
        f"the budget is {time} for {what} of {images(pool)} of the target, in {rounds} after epoch {epochs} "
        f"of {config.train.epochs}: about {first} in the first, at {time.answer:g} s each (acquisition.seconds_per_label); "
        "later rounds depend on the measured time per answer",
    )
    if config.task.resolved_unit == "image" and first * len(after) > pool:
        yield Finding(
            "warning",
            f"{time} is enough for about {first * len(after)} labels, but the pool has {images(pool)}: "
            "later rounds may have nothing left to query; lower acquisition.budget",
        )
    oracle = config.oracle.name
    if oracle == "human" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"human annotators answer: the run pauses in each of {rounds} and stops querying after {time}",
        )


def _check_batches(config: Config, found: Survey) -> Iterator[Finding]:
    """Check that batches can be filled and divided among processes."""
    size, engine = config.train.batch_size, config.engine
    world = (engine.processes or 1) * (engine.nodes or 1)
    if size % world or size < 2 * world:
        hosts = "" if engine.nodes is None else f" on each of engine.nodes={engine.nodes}"
        yield Finding(
            "error",
            f"train.batch_size={size} must be a multiple of engine.processes={engine.processes or 1}{hosts}, "
            "with at least two images per process; change one of these settings",
        )
    for role in ("source", "target"):
        count = len(found.parts.get(role, ()))
        if 0 < count < size:
            yield Finding(
                "warning",
                f"train.batch_size={size} is larger than the {role} ({images(count)}), so its "
                "batches are smaller; lower it or add images",
            )


def _check_crops(config: Config, found: Survey) -> Iterator[Finding]:
    """Check that crops fit into the stored images."""
    for name, role in LOOKED_AT.items():
        view: ViewConfig | None = getattr(config.views, name)
        if view is None or view.crop not in ("center", "random") or role not in found.shapes:
            continue
        if view.resize == "short_side" and role in found.parts and not found.parts[role].paths:
            yield Finding(
                "error",
                f"views.{name}.resize=short_side needs images from files, whose original shape is known; set "
                f"views.{name}.resize=squash",
            )
        _, height, width = found.shapes[role]
        pad = 2 * view.pad if view.crop == "random" else 0
        wanted = view.size or (height, width)
        tall, wide = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        if tall > height + pad or wide > width + pad:
            shown = wanted if isinstance(wanted, int) else f"{wide} x {tall}"
            yield Finding(
                "error",
                f"views.{name} takes a {view.crop} crop of {shown} pixels from images stored as "
                f"{width} x {height}; lower views.{name}.size or raise data.params.size",
            )


def _check_memory(found: Survey) -> Iterator[Finding]:
    """Estimate memory and disk space of the decoded images and label maps."""
    held = spilt = 0.0
    left = float("inf") if found.memory_gb is None else found.memory_gb
    for taken in _holdings(found):
        # Like a Room: an array that does not fit goes to a file as a whole.
        held, spilt, left = (
            (held + taken, spilt, left - taken) if taken <= left else (held, spilt + taken, left)
        )
    if held + spilt == 0:
        return
    what = "images and label maps" if found.of_pixels else "images"
    allowed = (
        ""
        if found.memory_gb is None
        else f"; {found.memory_gb:.3g} GB may be kept in memory (data.params.memory_gb)"
    )
    where = found.cache or Path(tempfile.gettempdir())
    kept = f", so {_size(spilt)} go to {where}{'' if found.cache else ' in every run'}" if spilt else ""
    yield Finding("note", f"decoded {what} take {_size(held + spilt)}{allowed}{kept}")
    free = free_memory_gb()
    if found.memory_gb is not None and free is not None and held > free:  # built images are in memory already
        yield Finding(
            "warning",
            f"{held:.1f} GB of {what} would be kept in memory, but only {free:.1f} GB are free; lower "
            "data.params.memory_gb or data.params.size",
        )
    if spilt > free_disk_gb(where) - RESERVED_DISK_GB:
        yield Finding(
            "warning",
            f"{spilt:.1f} GB of {what} would be written to {where}, but only {free_disk_gb(where):.1f} GB "
            "are free there, so they will be decoded again for every batch, which is slower; set another "
            "data.params.cache or a smaller data.params.size",
        )


def _holdings(found: Survey) -> Iterator[float]:
    """Yield the gigabytes of each array, in the order of decoding."""
    for role, part in found.parts.items():
        if role in found.shapes:
            channels, height, width = found.shapes[role]
            yield len(part) * channels * height * width / 2**30
            if part.label_files or part.maps is not None:
                bytes_each = 1 if len(found.classes) <= 127 else 2
                yield len(part) * height * width * bytes_each / 2**30


def _size(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.01 else "less than 0.01 GB"
