# The page of `fdcnet serve` on a CPU. Build: docker build --tag fdcnet .
# Run: docker run --rm --publish 127.0.0.1:8000:8000 --volume fdcnet-models:/models fdcnet
FROM python:3.12-slim
RUN useradd --create-home fdcnet && mkdir /models && chown fdcnet /models
COPY . /src
# For the smaller CPU build of PyTorch: --build-arg PIP_EXTRA_INDEX_URL=(the index that pytorch.org shows for CPU)
ARG PIP_EXTRA_INDEX_URL=""
RUN pip install --no-cache-dir --constraint /src/constraints.txt '/src[web,video]' && rm -rf /src
USER fdcnet
VOLUME /models
EXPOSE 8000
ENV OMP_WAIT_POLICY=passive
# Beyond this machine a token is needed: it is printed with the link when the container starts.
ENTRYPOINT ["fdcnet", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/mine"]
