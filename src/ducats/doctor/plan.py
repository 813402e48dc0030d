"""What the plan asks of the data and of the machine: labels, batches, crops, memory."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ducats.budget import PeopleTime, split_budget, time_of
from ducats.config import Config, View, ask_epochs
from ducats.data.decode import SPARE_GB
from ducats.data.exam import decide, held_out_of
from ducats.doctor.finding import Finding, gather, images
from ducats.doctor.found import Role, Survey
from ducats.doctor.pixels import asked_pixels, check_pixels
from ducats.errors import UserError
from ducats.records import MEASURED_ON
from ducats.room import free_disk_gb, free_memory_gb

LOOKED_AT: dict[str, Role] = {  # which images each view is for
    "source": "source",
    "labelled": "target",
    "unlabelled": "target",
    "scoring": "target",
    "test": "test",
}


BACKBONES = {"timm": "resnet50", "deeplab_v2": "resnet101", "deeplab_v3plus": "resnet101"}  # by default


def check_plan(config: Config, found: Survey) -> list[Finding]:
    """Whether the plan fits what was found."""
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
    """Whether the model sees source and target at one size; one that speaks of pixels takes any."""
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
            "warning", f"the model sees images of different sizes ({seen}); give all views one size"
        )


def _check_weights(config: Config) -> Iterator[Finding]:
    """Whether something has to be fetched."""
    name, knobs = config.model.name, config.model.knobs
    if name in BACKBONES and knobs.get("pretrained", True) and not knobs.get("weights"):
        backbone = str(knobs.get("backbone", BACKBONES[name]))
        with suppress(Exception):  # a torchvision that does not fit torch, which is said elsewhere
            from ducats.models import offline

            if offline.serves(backbone):
                said = f"the weights of timm's {backbone} come from the package {offline.PACKAGE}"
                yield Finding("note", said)
                return
        yield Finding("note", f"the weights of timm's {backbone} are fetched when they are first used")


def _check_exam(config: Config, found: Survey) -> Iterator[Finding]:
    """What the model will be measured on, if it can be."""
    if found.truth is None:
        return  # what is wrong with the data was said
    wanted = config.evaluation.images
    on, _ = decide(wanted, test="test" in found.parts, truth=found.truth, target_is_test=found.target_is_test)
    if on != "held_out" or "test" in found.parts or found.truth:
        yield Finding("note", f"the model is measured on {MEASURED_ON[on]} (evaluation.images={wanted})")


def pool_size(config: Config, found: Survey) -> int:
    """How many target images can be asked about: those that are not held out."""
    part = found.parts.get("target")
    if part is None or found.truth is None:
        return 0 if part is None else len(part)
    try:
        _, made = decide(
            config.evaluation.images,
            test="test" in found.parts,
            truth=found.truth,
            target_is_test=found.target_is_test,
        )
    except UserError:
        return len(part)  # said elsewhere
    if made != "split":
        return len(part)
    if found.of_pixels:
        return len(part) - held_out_of(len(part), config.evaluation.share)
    known = (found.parts["test"] if found.target_is_test else part).classes().values()
    return len(part) - sum(held_out_of(members, config.evaluation.share) for members in known)


def _check_budget(config: Config, found: Survey) -> Iterator[Finding]:
    """How many labels are asked for, when, and of whom."""
    oracle = config.oracle.name
    if oracle == "truth" and found.truth is False:
        yield Finding(
            "error",
            "the oracle 'truth' needs the target's labels, and this data has none: use --oracle people, or, "
            "for a benchmark whose target folders are classes, --truth",
        )
    after, pool = ask_epochs(config), pool_size(config, found)
    if not after:
        yield Finding("note", "no labels are asked for (ask.rounds is 0)")
    if not after or not pool:
        return
    time = time_of(config.ask.budget, config.ask.seconds, config.ask.growth)
    if time is not None:
        yield from _asked_time(config, found, pool, time)
        return
    if found.of_pixels and config.task.bought != "image":
        yield from asked_pixels(config, found, pool, after)
        return
    labels = split_budget(config.ask.budget, pool, len(after), config.ask.rounding, config.ask.growth)
    spread = f"{labels[0]}" if len(set(labels)) == 1 else " + ".join(map(str, labels))
    each = " each" if len(labels) > 1 and len(set(labels)) == 1 else ""
    epochs = ", ".join(map(str, after))
    what = "images, all pixels of each," if found.of_pixels else "labels"
    yield Finding(
        "note",
        f"of {images(pool)} of the target, {sum(labels)} {what} are asked for, {spread}{each} "
        f"after epoch {epochs} of {config.train.epochs}",
    )
    if oracle == "people" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"people answer: a person will be asked for {spread} {what}{each and ' in each round'}, "
            f"in {len(labels)} {'round' if len(labels) == 1 else 'rounds'}; the run pauses each time",
        )


def _asked_time(config: Config, found: Survey, pool: int, time: PeopleTime) -> Iterator[Finding]:
    """What a budget of people's time comes to, as far as that can be told before anyone answered."""
    after = ask_epochs(config)
    epochs, rounds = ", ".join(map(str, after)), "1 round" if len(after) == 1 else f"{len(after)} rounds"
    what = f"{config.task.bought}s" if found.of_pixels else "labels"
    first = time.questions(None, 0, 0, len(after))
    yield Finding(
        "note",
        f"of {images(pool)} of the target, {what} are asked for until {time} are spent, in {rounds} after "
        f"epoch {epochs} of {config.train.epochs}: about {first} in the first, at {time.answer:g} s each "
        "(ask.seconds); later rounds go by what people took",
    )
    if config.task.bought == "image" and first * len(after) > pool:
        yield Finding(
            "warning",
            f"{time} are enough for about {first * len(after)} labels, but the pool has {images(pool)}: "
            "later rounds may find nothing left to ask; lower ask.budget",
        )
    oracle = config.oracle.name
    if oracle == "people" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"people answer: the run pauses in each of {rounds}, and asks no more when {time} are spent",
        )


def _check_batches(config: Config, found: Survey) -> Iterator[Finding]:
    """Whether batches can be filled and shared out."""
    size, engine = config.train.batch_size, config.engine
    world = (engine.processes or 1) * (engine.nodes or 1)
    if size % world or size < 2 * world:
        hosts = "" if engine.nodes is None else f" on each of engine.nodes={engine.nodes}"
        yield Finding(
            "error",
            f"train.batch_size={size} must be a multiple of engine.processes={engine.processes or 1}{hosts}, "
            "two images for each; change one of the two",
        )
    for role in ("source", "target"):
        count = len(found.parts.get(role, ()))
        if 0 < count < size:
            yield Finding(
                "warning",
                f"train.batch_size={size} is larger than the {role} ({images(count)}), so its "
                "batches are short; lower it or add images",
            )


def _check_crops(config: Config, found: Survey) -> Iterator[Finding]:
    """Whether crops fit into the images as they are stored."""
    for name, role in LOOKED_AT.items():
        view: View | None = getattr(config.views, name)
        if view is None or view.crop not in ("center", "random") or role not in found.shapes:
            continue
        if view.resize == "short_side" and role in found.parts and not found.parts[role].paths:
            yield Finding(
                "error",
                f"views.{name}.resize=short_side needs images from files, whose own shape is known; set "
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
                f"views.{name} cuts a {view.crop} crop of {shown} pixels out of images that are stored as "
                f"{width} x {height}; lower views.{name}.size or raise data.knobs.size",
            )


def _check_memory(found: Survey) -> Iterator[Finding]:
    """What the decoded images take, in memory and on disk; and their label maps, if pixels have labels."""
    held = spilt = 0.0
    left = float("inf") if found.memory_gb is None else found.memory_gb
    for taken in _holdings(found):
        # As a Room does: what does not fit goes to a file as a whole.
        held, spilt, left = (
            (held + taken, spilt, left - taken) if taken <= left else (held, spilt + taken, left)
        )
    if held + spilt == 0:
        return
    what = "images and label maps" if found.of_pixels else "images"
    allowed = (
        ""
        if found.memory_gb is None
        else f"; {found.memory_gb:.3g} GB may be held in memory (data.knobs.memory_gb)"
    )
    where = found.cache or Path(tempfile.gettempdir())
    kept = f", so {_size(spilt)} go to {where}{'' if found.cache else ' in every run anew'}" if spilt else ""
    yield Finding("note", f"decoded, all {what} take {_size(held + spilt)}{allowed}{kept}")
    free = free_memory_gb()
    if found.memory_gb is not None and free is not None and held > free:  # built images are held already
        yield Finding(
            "warning",
            f"{held:.1f} GB of {what} are to be held in memory, but {free:.1f} GB are free; lower "
            "data.knobs.memory_gb or data.knobs.size",
        )
    if spilt > free_disk_gb(where) - SPARE_GB:
        yield Finding(
            "warning",
            f"{spilt:.1f} GB of {what} are to be kept in {where}, but {free_disk_gb(where):.1f} GB are left "
            "there, so they will be decoded again for every batch, which is slower; give another "
            "data.knobs.cache, or a smaller data.knobs.size",
        )


def _holdings(found: Survey) -> Iterator[float]:
    """Gigabytes of each set of arrays, in the order in which they are decoded."""
    for role, part in found.parts.items():
        if role in found.shapes:
            channels, height, width = found.shapes[role]
            yield len(part) * channels * height * width / 2**30
            if part.label_files or part.maps is not None:
                bytes_each = 1 if len(found.classes) <= 127 else 2
                yield len(part) * height * width * bytes_each / 2**30


def _size(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.01 else "less than 0.01 GB"
