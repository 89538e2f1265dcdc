#!/bin/sh
# Replaces the throw-away certificates in this directory. Needs meshctl on PATH or in $MESHCTL.
set -eu
cd "$(dirname "$0")"
meshctl=${MESHCTL:-meshctl}
end=2126-01-01T00:00:00Z
rm -f ./*.crt ./*.key ./*.pub
"$meshctl" cert init --commonname 'development authority' --key ecdsa --notafter $end --outcert ca.crt --outkey ca.key
for node in control hop execution; do
    "$meshctl" cert makereq --commonname $node --nodeid $node --dnsname localhost --ipaddress 127.0.0.1 \
        --key ecdsa --outreq $node.req --outkey $node.key
    "$meshctl" cert signreq --req $node.req --cacert ca.crt --cakey ca.key --notafter $end --outcert $node.crt --verify
    rm $node.req
done
"$meshctl" key generate --bits 2048 --private work.key --public work.pub
