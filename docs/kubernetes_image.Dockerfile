# The image of a Ray cluster's head and workers: Ray, vLLM and what they need. Nothing of Airflow is in it.
ARG RAY=2.60.0
FROM rayproject/ray:${RAY}-py312-gpu
ARG RAY
ARG VLLM=0.29.0

# Ray's version is named again, so that vLLM's requirements can't change it: KubeRay is told the version of the tag.
RUN pip install --no-cache-dir "ray[data,default]==${RAY}" "vllm==${VLLM}"

# Fails the build, and not the first run, where the two don't fit each other.
RUN python -c "import importlib.metadata as m; assert m.version('ray') == '${RAY}', m.version('ray')"
