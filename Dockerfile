# syntax=docker/dockerfile:1
# A node of tidelog, or its command line: `docker build -t tidelog:local .`, then `docker run --rm tidelog:local --help`.

FROM python:3.13-slim AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

# Everything that this lock names, each checked by its hash; wheels only, so that no compiler is needed. It is the part of
# requirements.lock that is installed below (scripts/lock writes both).
COPY requirements-image.lock .
RUN pip download --quiet --require-hashes --only-binary :all: --dest /wheels --requirement requirements-image.lock

# From here on no index is asked: what is installed can only be what the lock names. Of that, what tidelog needs at run time.
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
RUN pip install --quiet hatchling
COPY . .
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /own . \
    && python -m venv --without-pip /opt/tidelog \
    && pip --python /opt/tidelog install --quiet --compile /own/*.whl \
    && /opt/tidelog/bin/tidelog --version

FROM python:3.13-slim
COPY --from=build /opt/tidelog /opt/tidelog
# A number, so that whoever must know that it is not root can see it. A new volume takes over the directory's owner.
RUN useradd --system --uid 10001 --no-create-home --home-dir /var/lib/tidelog tidelog \
    && install -d -o tidelog -g tidelog /var/lib/tidelog
ENV PATH=/opt/tidelog/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/tidelog
# A stop in order: a broker hands over what it leads first.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidelog"]
CMD ["--help"]
