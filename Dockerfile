# syntax=docker/dockerfile:1
# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0

# One image for the server and for sites. Its context is a folder that `.ci/wheelhouse` filled, with the same Python.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

RUN --mount=type=bind,target=/wheelhouse pip install --no-cache-dir --no-index --no-deps --find-links /wheelhouse --require-hashes --requirement /wheelhouse/requirements.lock
RUN pip check
# New volumes are owned as these folders are.
RUN install -d -o 10001 -g 10001 /state /tmp/nvflare

# FLARE copies the kit, which is mounted read-only, into its workspace at each start.
ENV NVFL_WORKSPACE=/state/workspace CFL_STATE_ROOT=/state/cfl HOME=/tmp USER=flare PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /state
ENTRYPOINT ["bash", "/kit/startup/sub_start.sh", "--once"]
