#!/bin/sh
# keys.sh CLIENTS [NAME…]: an authority, a certificate of the server for these names, and a key for each client, in keys/.
# In earnest every client makes its own key, and sends only the .pub.
set -eu
clients=$1
shift
names="DNS:localhost,IP:127.0.0.1,DNS:superlink,DNS:gateway"
for name in "$@"; do names="$names,DNS:$name"; done
umask 077
mkdir -p keys
cd keys
openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=our authority" -keyout ca.key -out ca.crt
openssl req -newkey rsa:3072 -nodes -subj "/CN=our server" -keyout server.key -out server.csr
echo "subjectAltName = $names" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext -out server.pem
client=0
while [ "$client" -lt "$clients" ]; do
  ssh-keygen -q -t ecdsa -b 384 -N "" -f "node$client"
  client=$((client + 1))
done
chmod 644 ca.crt server.pem ./*.pub
echo "Flower's images run as user 49999, who must be able to read the keys that are mounted. For Docker Compose:"
echo "  sudo chown 49999 keys/server.key keys/node*[0-9]"
