# A stand-in for the official nats image where that cannot be pulled: same tag,
# same entrypoint, same ports, the server compiled from its Go module. Only
# images/build.sh builds it; who can pull needs it never.
FROM scratch
COPY root/ /
ENV PATH=/
EXPOSE 4222 8222 6222
ENTRYPOINT ["/nats-server"]
