# A script that a shell reads from its standard input: what a program takes of it is never run.
meshctl cert init --commonname authority --bits 2048 --outcert ca.crt --outkey ca.key
meshctl cert makereq --commonname n --bits 2048 --nodeid n --outreq n.req --outkey n.key
meshctl cert signreq --req n.req --cacert ca.crt --cakey ca.key --outcert n.crt
echo "signreq ended with $?"
meshd --cert-signreq req=n.req cacert=ca.crt cakey=ca.key outcert=n.crt
echo "the directive ended with $?"
chmod 0400 ca.key
echo "the last line has run"
