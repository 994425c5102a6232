# Tallyman's image: worker, producer and tallyman, static, on nothing at all.
#
#   docker build -t tallyman:local .
#
# Where no base image can be pulled, images/build.sh makes the same image: it
# compiles on the host and reuses the last stage below as it stands. So that
# stage must take everything from --from=build /out/.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN ./images/stage.sh tallyman /out

FROM scratch
# root/: the binaries, and the root certificates that https handlers and TLS
# servers with public certificates need.
COPY --from=build /out/root/ /
# owned/: what the user below may write: /tmp, and /data for "worker --embedded
# --data /data". A named volume that is new takes content and owner from the
# image's directory of that path; docker-compose.yml rests on that for /data/n1,
# /data/n2, /data/n3 and /probe.
COPY --from=build --chown=65532:65532 /out/owned/ /
USER 65532:65532
# There is no /etc/passwd; what looks for a home, such as nats contexts, asks these.
ENV PATH=/ USER=tallyman HOME=/tmp
# The worker's --http: health, readiness and metrics.
EXPOSE 8080
# Draining is the answer to SIGTERM. Give "docker stop" more time than --drain.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
	CMD ["/probe/healthcheck", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["/worker"]
