# gmmae for CPUs and for NVIDIA GPUs. docs/containers.md has the commands.
#
#   docker build -t gmmae .
#   docker build --build-arg EXTRA=cuda13 -t gmmae:cuda13 .
#
# EXTRA is an extra of pyproject.toml: cuda13, or cuda12 for drivers before 580 and GPUs before Turing. The packages bring CUDA, so
# the host needs only the driver and NVIDIA's container toolkit.
FROM python:3.12.11-slim-bookworm

ARG EXTRA=""

WORKDIR /opt/gmmae
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gmmae gmmae
COPY configs configs
RUN python -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".${EXTRA:+[$EXTRA]}"

# Any user may run it: caches are in the folder for temporary files. Runs go to /srv/gmmae, where a folder of the host is mounted.
ENV XDG_CACHE_HOME=/tmp/cache MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --create-home gmmae && mkdir -p /srv/gmmae && chown gmmae /srv/gmmae
USER 1000
WORKDIR /srv/gmmae

ENTRYPOINT ["gmmae"]
CMD ["--help"]
