# The page and its HTTP API: docker build -t everybyte . && docker run --rm -p 8000:8000 everybyte, then http://localhost:8000/
# A server that is called by another name than localhost is told so: docker run ... everybyte ui --host 0.0.0.0 --no-browser --allow-host gpu.example.org
FROM python:3.13-slim

# The files are the administrator's and the process is not: it can read the package and write nothing of it.
RUN useradd --create-home --uid 10001 everybyte
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt /build/
COPY src /build/src
RUN pip install --no-cache-dir -c /build/constraints.txt "/build[web,charts]" && rm -rf /build

USER everybyte
WORKDIR /home/everybyte
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8000/health', timeout=2)"]
CMD ["everybyte", "ui", "--host", "0.0.0.0", "--no-browser"]
