# The service on the CPU. Any base with Python 3.11 or later and its venv module will do.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS environment
WORKDIR /app
COPY requirements.txt ./
RUN python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --disable-pip-version-check -r requirements.txt

FROM ${BASE_IMAGE}
WORKDIR /app
# llama.cpp computes with OpenMP, whose library slim images lack. Unpinned: Debian keeps one version, the patched one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin touchstone \
    && mkdir /data \
    && chown touchstone:touchstone /data
COPY --from=environment /app/.venv ./.venv
COPY LICENSE config.yaml requirements.txt ./
COPY frontend ./frontend
COPY backend ./backend
RUN .venv/bin/python -m compileall -q backend
ENV PATH=/app/.venv/bin:$PATH \
    HOME=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    TOUCHSTONE_HOST=0.0.0.0 \
    TOUCHSTONE_DATA_DIR=/data
USER 10001:10001
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# Exec form and Python alone: a slim image has no curl.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["python", "-c", \
    "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('TOUCHSTONE_PORT', '8000')), timeout=4); c.request('GET', '/api/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "backend"]
CMD ["serve", "--container"]
