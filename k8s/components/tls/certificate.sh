#!/bin/sh
# Writes the key and the certificate of this pod to /etc/mesh/tls, signed by the authority in /etc/mesh/ca.
set -eu
cd /etc/mesh/tls
cp /etc/mesh/ca/tls.crt ca.crt
cat > request.cnf <<END
[req]
prompt = no
distinguished_name = name
req_extensions = extensions
[name]
CN = mesh
[extensions]
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:$POD_IP, DNS:${FQ_RAY_IP:-localhost}
END
openssl req -new -newkey rsa:2048 -nodes -keyout tls.key -out request.csr -config request.cnf
openssl x509 -req -in request.csr -CA ca.crt -CAkey /etc/mesh/ca/tls.key -CAserial ca.srl -CAcreateserial \
  -out tls.crt -days 365 -extensions extensions -extfile request.cnf
chmod 600 tls.key
