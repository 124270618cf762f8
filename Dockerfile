# Runs the check of all twins: docker build -t twinsolve . && docker run --rm twinsolve
# PyTorch for the CPU alone is smaller: name its index, --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[bench]" && rm -r /src
RUN useradd --create-home twinsolve
USER twinsolve
WORKDIR /home/twinsolve
ENTRYPOINT ["twinsolve"]
CMD ["check"]
