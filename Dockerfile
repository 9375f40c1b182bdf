# BASE_IMAGE: any with Python 3.11 to 3.14 and its venv module. RUNTIME: base (CPU only), cuda, rocm, or another that
# `runtimes` lists. CHIP: the GPU's chip, such as gfx1100, for runtimes that depend on it.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS environment
WORKDIR /app
COPY requirements.txt constraints.txt ./
# Bytecode is compiled now, since the file system is read-only later. Tests, type stubs, build tools and model builders of
# packages are removed.
RUN python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check -r requirements.txt -c constraints.txt \
    && find .venv -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -r {} + \
    && find .venv -name '*.pyi' -delete \
    && for part in setuptools pkg_resources onnxruntime/tools onnxruntime_genai/models; do \
        rm -rf .venv/lib/python3.*/site-packages/"$part"; done \
    && .venv/bin/python -m compileall -q -x 'site-packages/pip/' .venv/lib

FROM environment AS runtime
ARG RUNTIME=base
ARG CHIP=
COPY config.yaml ./
COPY backend ./backend
RUN mkdir /opt/runtime \
    && if [ "$RUNTIME" != base ]; then \
        python=$(.venv/bin/python -m backend.runtimes "$RUNTIME" /opt/runtime ${CHIP:+"$CHIP"}) \
        && sed -i "s|^runtimes: {}|runtimes: {$RUNTIME: {python: $python}}|" config.yaml \
        && rm -rf /opt/runtime/.cache /opt/runtime/tools/uv*; \
    fi

FROM ${BASE_IMAGE}
WORKDIR /app
# llama.cpp requires OpenMP's library, which slim images lack. Not pinned: Debian keeps one version, the patched one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin touchstone \
    && mkdir /data \
    && chown touchstone:touchstone /data
COPY --from=environment /app/.venv ./.venv
COPY --from=runtime /opt/runtime /opt/runtime
COPY LICENSE requirements.txt ./
COPY --from=runtime /app/config.yaml ./
COPY frontend ./frontend
COPY backend ./backend
RUN .venv/bin/python -m compileall -q backend
ENV PATH=/app/.venv/bin:$PATH \
    HOME=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics \
    TOUCHSTONE_HOST=0.0.0.0 \
    TOUCHSTONE_DATA_DIR=/data
USER 10001:10001
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# Exec form with Python: a slim image has no curl.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["python", "-c", \
    "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('TOUCHSTONE_PORT', '8000')), timeout=4); c.request('GET', '/api/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "backend"]
CMD ["serve", "--container"]
