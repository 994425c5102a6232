# The nats CLI alone, for looking into the cluster of docker-compose.yml. Its
# last stage is reused by images/build.sh in the way that Dockerfile explains.
FROM golang:1.26 AS build
WORKDIR /src
COPY . .
RUN ./images/stage.sh nats-cli /out

FROM scratch
COPY --from=build /out/root/ /
# The CLI keeps contexts in its home, and does not start without a user.
COPY --from=build --chown=65532:65532 /out/owned/ /
USER 65532:65532
ENV PATH=/ USER=nats HOME=/home
ENTRYPOINT ["/nats"]
