# The lock file was resolved for Python 3.11, so the image runs that one. The tag moves with security updates.
FROM python:3.11-slim-bookworm AS base


FROM base AS build

WORKDIR /src

# Exactly the packages of the lock file, as wheels only. Cached until the lock file changes.
COPY requirements-image.lock ./
RUN python -m venv --without-pip /opt/toolcrib && \
    python -m pip --python /opt/toolcrib/bin/python install --no-cache-dir --only-binary=:all: \
      --require-hashes --requirement requirements-image.lock

# The service itself, as a wheel. Build dependencies are removed; `pip check` fails if the service needs one of them.
COPY pyproject.toml README.md LICENSE ./
COPY migrations ./migrations
COPY app ./app
RUN python -m pip --python /opt/toolcrib/bin/python wheel --no-cache-dir --no-deps --no-build-isolation \
      --wheel-dir /dist . && \
    python -m pip --python /opt/toolcrib/bin/python install --no-cache-dir --no-deps /dist/*.whl && \
    python -m pip --python /opt/toolcrib/bin/python uninstall --yes \
      editables hatchling packaging pathspec pluggy tomlkit trove-classifiers && \
    python -m pip --python /opt/toolcrib/bin/python check


FROM base

LABEL org.opencontainers.image.title="Toolcrib" \
      org.opencontainers.image.description="Lists tools, runs them for any LLM agent, and keeps a durable, watchable record of every call." \
      org.opencontainers.image.licenses="MIT"

# No versions: Debian's mirrors keep only the newest build of a package, so a pin breaks with the next security update.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends bubblewrap ca-certificates git ripgrep tini && \
    rm -rf /var/lib/apt/lists/*

# Fixed ids, so that files on a volume belong to the same user in every version of the image. A new named volume takes
# owner and mode of /data from here. A toolcrib.toml can be mounted into the working directory.
RUN groupadd --gid 10001 toolcrib && \
    useradd --uid 10001 --gid toolcrib --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin toolcrib && \
    install --directory --owner=toolcrib --group=toolcrib --mode=700 /data && \
    install --directory /etc/toolcrib

COPY --from=build /opt/toolcrib /opt/toolcrib

ENV PATH="/opt/toolcrib/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TOOLCRIB_HOST=0.0.0.0 \
    TOOLCRIB_PRINT_KEY=false \
    TOOLCRIB_DATA_DIR=/data

WORKDIR /etc/toolcrib
USER 10001:10001
VOLUME /data
EXPOSE 8700
STOPSIGNAL SIGTERM

# Uses the address in the lock file of the running service, so that it works with every port setting; never a proxy.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-I", "-c", "\
import json, os, ssl, urllib.request as web; \
url = json.load(open(os.environ['TOOLCRIB_DATA_DIR'] + '/service.lock'))['url'] + '/readyz'; \
loopback = web.HTTPSHandler(context=ssl._create_unverified_context()); \
web.build_opener(web.ProxyHandler({}), loopback).open(url, timeout=4)"]

ENTRYPOINT ["tini", "--", "toolcrib"]
CMD ["serve"]
