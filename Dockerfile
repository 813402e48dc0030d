# ducats in a container, see docs/install.md:
#   docker build -t ducats .
#   docker build -t ducats:cuda --build-arg DEVICE=cuda .
FROM python:3.13-slim-bookworm

# cpu, or cuda: torch with its CUDA libraries, several GB; the host needs the NVIDIA driver and container toolkit.
ARG DEVICE=cpu

ENV PYTHONUNBUFFERED=1 \
    VIRTUAL_ENV=/opt/ducats \
    PATH=/opt/ducats/bin:$PATH \
    HOME=/home/ducats

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Any user id may use this home, so that files in mounted folders can belong to the user of the host.
RUN python -m pip install --no-cache-dir 'uv>=0.9,<1' \
    && useradd --uid 1000 ducats \
    && install --directory --mode 1777 /home/ducats /home/ducats/.cache /work \
    && uv venv /opt/ducats

WORKDIR /build

# The dependencies: this layer changes only with them.
COPY pyproject.toml constraints.txt ./
RUN case "$DEVICE" in \
        cpu) torch=(--torch-backend cpu) ;; \
        cuda) torch=() ;; \
        *) echo "DEVICE must be cpu or cuda, not $DEVICE" >&2; exit 1 ;; \
    esac \
    && uv pip install --no-cache "${torch[@]}" --constraints constraints.txt \
        --requirements pyproject.toml --extra label --extra parquet --extra export

COPY README.md LICENSE hatch_build.py ./
COPY src src
RUN uv pip install --no-cache --no-deps --compile-bytecode . && ducats --version

USER 1000
WORKDIR /work
# The port of the labelling page, in the examples of the documentation.
EXPOSE 8123
ENTRYPOINT ["ducats"]
CMD ["--help"]
