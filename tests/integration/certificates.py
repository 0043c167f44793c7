"""Certificates for the TLS tests, made by the openssl command: an authority, and certificates that it has signed or
not."""

import os
import ssl
import subprocess


class Certificates:
    """Files NAME.crt and NAME.key in a folder. 'ca' has signed all certificates but 'stranger', which has another
    authority."""

    PASSPHRASE = "correct-horse-battery-staple"

    def __init__(self, folder):
        self.folder = str(folder)
        for name in ("ca", "other-ca"):
            self.openssl("req", "-x509", *self.new_key(name), "-out", name + ".crt", "-subj", "/CN=" + name,
                         "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 insists on it
        self.make("server", "DNS:localhost,IP:127.0.0.1")
        self.make("named", "DNS:redis.example.org")
        self.make("client", "DNS:client")
        self.make("expired", "DNS:client", days=0)
        self.make("stranger", "DNS:client", ca="other-ca")
        self.openssl("ec", "-in", "server.key", "-aes128", "-passout", "pass:" + self.PASSPHRASE, "-out", "locked.key")

    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @staticmethod
    def new_key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", name + ".key"]

    def make(self, name, alternative, ca="ca", days=30):
        with open(self.path(name + ".ext"), "w") as f:
            f.write("subjectAltName=%s\nauthorityKeyIdentifier=keyid\n" % alternative)
        self.openssl("req", *self.new_key(name), "-out", name + ".csr", "-subj", "/CN=" + name)
        self.openssl("x509", "-req", "-in", name + ".csr", "-CA", ca + ".crt", "-CAkey", ca + ".key", "-CAcreateserial",
                     "-days", str(days), "-extfile", name + ".ext", "-out", name + ".crt")

    def path(self, name):
        return os.path.join(self.folder, name)

    def pair(self, name):
        return self.path(name + ".crt"), self.path(name + ".key")

    def server_lines(self, port, *more, name="server"):
        """The proxy's directives for clients over TLS."""
        return ["tls-port %d" % port, "tls-cert-file %s" % self.path(name + ".crt"),
                "tls-key-file %s" % self.path(name + ".key"), "tls-ca-cert-file %s" % self.path("ca.crt"), *more]

    def upstream_lines(self, *more):
        """Lines for connections to nodes; the proxy shows them the client's certificate."""
        return ["upstream-tls yes", "upstream-tls-ca-cert-file %s" % self.path("ca.crt"),
                "upstream-tls-cert-file %s" % self.path("client.crt"),
                "upstream-tls-key-file %s" % self.path("client.key"), *more]

    def redis_options(self, port):
        return ["--tls-port", str(port), "--tls-cert-file", self.path("server.crt"), "--tls-key-file",
                self.path("server.key"), "--tls-ca-cert-file", self.path("ca.crt"), "--tls-replication", "yes",
                "--tls-cluster", "yes"]

    def context(self, name="client", version=None):
        """A client's side that trusts 'ca'; with the certificate of that name, None: without."""
        context = ssl.create_default_context(cafile=self.path("ca.crt"))
        if name:
            context.load_cert_chain(*self.pair(name))
        if version:
            context.minimum_version = context.maximum_version = version
        return context
