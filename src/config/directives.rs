//! The table of all directives and parameters of version 1: the whole grammar in one place.
//!
//! Owns names, types, defaults and the one-line descriptions. It refuses to know how a value is read and
//! whether this version implements it, see the room's `support`.

use super::schema::Role::{Defines, Needs, Refers};
use super::schema::{Directive, Group, Kind, Parameter as P};

const SERVICE: &str = "service";
const WORK_TYPE: &str = "work type";
const SOCKET: &str = "socket file";
const TLS_SERVER: &str = "tls-server";
const TLS_CLIENT: &str = "tls-client";

const BIND_ADDRESS: P = P::text("bindaddr", "local address to listen on").or("0.0.0.0");
const COST: P = P::new("cost", Kind::Float, "cost of the link, above zero").or("1.0");
const NODE_COST: P = P::new("nodecost", Kind::NodeCosts, "other costs for single neighbours");
const ALLOWED_PEERS: P = P::new("allowedpeers", Kind::TextList, "node IDs to accept; all if not given");
const REDIAL: P = P::new("redial", Kind::Flag, "connect again after a loss").or("true");
const REMOTE_NODE: P = P::text("remotenode", "node to forward to").required();
const REMOTE_SERVICE: P = P::text("remoteservice", "service to forward to").required();
const BIND_SERVICE: P = P::text("service", "service name to listen on").required().role(Defines(SERVICE));
const LISTENER_TLS: P = P::text("tls", "tls-server profile").role(Refers(TLS_SERVER));
const PEER_TLS: P = P::text("tls", "tls-client profile").role(Refers(TLS_CLIENT));
const WORK_TYPE_NAME: P = P::text("worktype", "name of the work type").required().role(Defines(WORK_TYPE));
const VERIFY_SIGNATURE: P =
    P::flag("verifysignature", "accept only signed submissions").role(Needs("work-verification"));
const PERMISSIONS: P = P::new("permissions", Kind::Int, "mode of the socket file").or("0600");
const NOT_BEFORE: P = P::text("notbefore", "start of validity, RFC 3339; now if not given");
const NOT_AFTER: P = P::text("notafter", "end of validity, RFC 3339; in a year if not given");
const SKIP_NAMES: P = P::flag("skipreceptornamescheck", "do not look for the node ID in the certificate");
const CRL: P = P::text("crl", "file of revocation lists, read again when it changes");
const BLOCKLIST: P = P::text("blocklist", "file of fingerprints to refuse, read again when it changes");
const MIN_TLS13: P = P::flag("mintls13", "refuse TLS 1.2");

/// All directives, sorted by the sections of the help text.
pub static DIRECTIVES: &[Directive] = &[
    Directive::new("node", Group::Node, "This node's name and data", NODE).singleton(),
    Directive::new("local-only", Group::Node, "Runs without any link to other nodes", &[]).singleton(),
    Directive::new("log-level", Group::Node, "How much is logged", LOG_LEVEL).singleton(),
    Directive::new("trace", Group::Node, "Logs every packet", &[]).singleton(),
    Directive::new("pyroscope-client", Group::Node, "Sends profiles to Pyroscope", PYROSCOPE_CLIENT)
        .singleton(),
    Directive::new("tcp-listener", Group::Backends, "Accepts neighbours over TCP", TCP_LISTENER),
    Directive::new("tcp-peer", Group::Backends, "Connects to a neighbour over TCP", TCP_PEER),
    Directive::new("udp-listener", Group::Backends, "Accepts neighbours over UDP", UDP_LISTENER),
    Directive::new("udp-peer", Group::Backends, "Connects to a neighbour over UDP", UDP_PEER),
    Directive::new("ws-listener", Group::Backends, "Accepts neighbours over WebSocket", WS_LISTENER),
    Directive::new("ws-peer", Group::Backends, "Connects to a neighbour over WebSocket", WS_PEER),
    Directive::new("quic-listener", Group::Backends, "Accepts neighbours over QUIC", QUIC_LISTENER),
    Directive::new("quic-peer", Group::Backends, "Connects to a neighbour over QUIC", QUIC_PEER),
    Directive::new("control-service", Group::Services, "Answers meshctl and receptorctl", CONTROL_SERVICE),
    Directive::new("command-service", Group::Services, "Offers a command on a terminal", COMMAND_SERVICE),
    Directive::new("tcp-server", Group::Services, "Forwards a local TCP port into the mesh", TCP_SERVER),
    Directive::new("tcp-client", Group::Services, "Forwards a service to a TCP address", TCP_CLIENT),
    Directive::new("udp-server", Group::Services, "Forwards a local UDP port into the mesh", UDP_SERVER),
    Directive::new("udp-client", Group::Services, "Forwards a service to a UDP address", UDP_CLIENT),
    Directive::new(
        "unix-socket-server",
        Group::Services,
        "Forwards a Unix socket into the mesh",
        UNIX_SERVER,
    ),
    Directive::new("unix-socket-client", Group::Services, "Forwards a service to a Unix socket", UNIX_CLIENT),
    Directive::new("ip-router", Group::Services, "Carries IP packets over the mesh", IP_ROUTER),
    Directive::new("work-command", Group::Work, "Runs work by a local command", WORK_COMMAND),
    Directive::new("work-kubernetes", Group::Work, "Runs work in Kubernetes pods", WORK_KUBERNETES),
    Directive::new("work-python", Group::Work, "Runs work by a Python plugin", WORK_PYTHON),
    Directive::new("work-signing", Group::Work, "The key that signs submissions", WORK_SIGNING).singleton(),
    Directive::new("work-verification", Group::Work, "The key that verifies submissions", WORK_VERIFICATION)
        .singleton(),
    Directive::new("tls-server", Group::Tls, "A TLS profile for listening", TLS_SERVER_PROFILE),
    Directive::new("tls-client", Group::Tls, "A TLS profile for connecting", TLS_CLIENT_PROFILE),
    Directive::new("cert-init", Group::Certificates, "Makes a certificate authority", CERT_INIT).exclusive(),
    Directive::new("cert-makereq", Group::Certificates, "Makes a certificate request", CERT_MAKEREQ)
        .exclusive(),
    Directive::new("cert-signreq", Group::Certificates, "Signs a certificate request", CERT_SIGNREQ)
        .exclusive(),
];

const NODE: &[P] = &[
    P::text("id", "node ID; the host name if not given").bare(),
    P::text("datadir", "where the node keeps its data; see above for the default"),
    P::new("firewallrules", Kind::FirewallRules, "rules for data packets, the first match decides"),
    P::text("maxidleconnectiontimeout", "close a silent link after this time, 21s or more"),
    P::text("forgetafter", "forget a node unreachable for so long, 1m up").or("10m"),
    P::new("peerunits", Kind::Int, "most units here of one calling node").or("10000"),
    P::new("peerpayload", Kind::Int, "most bytes of their payloads").or("68719476736"),
    P::new("streambuffers", Kind::Int, "bytes for buffers of streams; an eighth of the memory"),
    P::text("receptorkubesupportreconnect", "Kubernetes: resume broken logs"),
    P::text("receptorkubeclientsetqps", "Kubernetes: requests per second"),
    P::text("receptorkubeclientsetburst", "Kubernetes: requests at once"),
    P::text("receptorkubeclientsetratelimiter", "Kubernetes: kind of limit"),
];

const LOG_LEVEL: &[P] = &[P::text("level", "error, warning, info or debug").bare().or("error")];

const PYROSCOPE_CLIENT: &[P] = &[
    P::text("applicationname", "name that the profiles are sent under"),
    P::new("tags", Kind::FreeMap, "labels of the profiles"),
    P::text("serveraddress", "URL of the server"),
    P::text("basicauthuser", "user for the server"),
    P::text("basicauthpassword", "password for the server"),
    P::text("tenantid", "tenant of the server"),
    P::text("uploadrate", "time between two uploads"),
    P::new("profiletypes", Kind::TextList, "kinds of profiles"),
    P::flag("disablegcruns", "do not collect garbage before a profile"),
    P::new("httpheaders", Kind::FreeMap, "headers of the uploads"),
];

const TCP_LISTENER: &[P] = &[
    P::new("port", Kind::Int, "TCP port to listen on").required().bare(),
    BIND_ADDRESS,
    LISTENER_TLS,
    COST,
    NODE_COST,
    ALLOWED_PEERS,
];

const TCP_PEER: &[P] =
    &[P::text("address", "host:port to connect to").required().bare(), REDIAL, PEER_TLS, COST, ALLOWED_PEERS];

const UDP_LISTENER: &[P] = &[
    P::new("port", Kind::Int, "UDP port to listen on").required().bare(),
    BIND_ADDRESS,
    COST,
    NODE_COST,
    ALLOWED_PEERS,
];

const UDP_PEER: &[P] =
    &[P::text("address", "host:port to connect to").required().bare(), REDIAL, COST, ALLOWED_PEERS];

const WS_LISTENER: &[P] = &[
    P::new("port", Kind::Int, "TCP port of the HTTP server").required().bare(),
    BIND_ADDRESS,
    P::text("path", "path of the WebSocket on that server").or("/"),
    LISTENER_TLS,
    COST,
    NODE_COST,
    ALLOWED_PEERS,
];

const WS_PEER: &[P] = &[
    P::text("address", "URL to connect to, ws:// or wss://").required().bare(),
    REDIAL,
    P::text("extraheader", "a further HTTP header, name:value"),
    PEER_TLS,
    COST,
    ALLOWED_PEERS,
];

const QUIC_LISTENER: &[P] = &[
    P::new("port", Kind::Int, "UDP port to listen on").required().bare(),
    BIND_ADDRESS,
    LISTENER_TLS.required(),
    COST,
    NODE_COST,
    ALLOWED_PEERS,
];

const QUIC_PEER: &[P] = &[
    P::text("address", "host:port to connect to").required().bare(),
    REDIAL,
    PEER_TLS.required(),
    COST,
    ALLOWED_PEERS,
];

const CONTROL_SERVICE: &[P] = &[
    P::text("service", "service name to listen on").or("control").role(Defines(SERVICE)),
    P::text("filename", "Unix socket to listen on").role(Defines(SOCKET)),
    PERMISSIONS,
    P::text("tls", "tls-server profile of the service").role(Refers(TLS_SERVER)),
    P::text("tcplisten", "TCP port or host:port to listen on"),
    P::text("tcptls", "tls-server profile of the TCP port").role(Refers(TLS_SERVER)),
    P::text("forward", "trust any caller of: none, tcp or all").or("none"),
];

const COMMAND_SERVICE: &[P] =
    &[BIND_SERVICE, P::text("command", "command to run for each connection").required(), LISTENER_TLS];

const TCP_SERVER: &[P] = &[
    P::new("port", Kind::Int, "TCP port to listen on").required(),
    BIND_ADDRESS,
    REMOTE_NODE,
    REMOTE_SERVICE,
    P::text("tlsserver", "tls-server profile of the port").role(Refers(TLS_SERVER)),
    P::text("tlsclient", "tls-client profile towards the service").role(Refers(TLS_CLIENT)),
];

const TCP_CLIENT: &[P] = &[
    BIND_SERVICE,
    P::text("address", "host:port to connect to").required(),
    P::text("tlsserver", "tls-server profile of the service").role(Refers(TLS_SERVER)),
    P::text("tlsclient", "tls-client profile towards the address").role(Refers(TLS_CLIENT)),
];

const UDP_SERVER: &[P] = &[
    P::new("port", Kind::Int, "UDP port to listen on").required(),
    BIND_ADDRESS,
    REMOTE_NODE,
    REMOTE_SERVICE,
];

const UDP_CLIENT: &[P] = &[BIND_SERVICE, P::text("address", "host:port to send to").required()];

const UNIX_SERVER: &[P] = &[
    P::text("filename", "Unix socket to listen on; replaced if it exists").required().role(Defines(SOCKET)),
    PERMISSIONS,
    REMOTE_NODE,
    REMOTE_SERVICE,
    P::text("tls", "tls-client profile towards the service").role(Refers(TLS_CLIENT)),
];

const UNIX_CLIENT: &[P] =
    &[BIND_SERVICE, P::text("filename", "Unix socket to connect to").required(), LISTENER_TLS];

const IP_ROUTER: &[P] = &[
    P::text("networkname", "name of the network and of its service").required().role(Defines(SERVICE)),
    P::text("interface", "name of the tun interface"),
    P::text("localnet", "local /30 network, as in 10.0.0.0/30").required(),
    P::text("routes", "networks to advertise, separated by commas"),
];

const WORK_COMMAND: &[P] = &[
    WORK_TYPE_NAME,
    P::text("command", "program to run").required(),
    P::text("params", "its arguments"),
    P::flag("allowruntimeparams", "let submissions add arguments"),
    VERIFY_SIGNATURE,
    ENVIRONMENT,
    DIRECTORY,
    P::text("user", "user whose rights it has; needs a node that runs as root"),
    MAX_UNITS,
    TIMEOUT,
    CANCEL_GRACE,
    P::new("maxstdout", Kind::Int, "most bytes of output kept"),
    P::text("maxstdoutaction", "for more: fail, stop or truncate-head").or("fail"),
    RELEASE_AFTER,
    CPU,
    MEMORY,
    PIDS,
];

const ENVIRONMENT: P = P::new("env", Kind::FreeMap, "variables for its environment");
const DIRECTORY: P = P::text("cwd", "working directory; the node's own if not given");
const MAX_UNITS: P = P::new("maxunits", Kind::Int, "most units running at once; others wait in order");
const TIMEOUT: P = P::text("timeout", "longest run, as in 3h30m");
const CANCEL_GRACE: P = P::text("cancelgrace", "time between SIGINT and harder signals; 10s if not given");
const RELEASE_AFTER: P = P::text("releaseafter", "how long finished units are kept, as in 72h");
const CPU: P = P::new("cpu", Kind::Float, "processors that a unit may use, as in 1.5");
const MEMORY: P = P::new("memory", Kind::Int, "bytes of memory that a unit may use");
const PIDS: P = P::new("pids", Kind::Int, "processes and threads that a unit may have");

const WORK_KUBERNETES: &[P] = &[
    WORK_TYPE_NAME,
    P::text("namespace", "namespace of the pods"),
    P::text("image", "container image"),
    P::text("command", "command in the container, instead of its own"),
    P::text("params", "arguments of the command"),
    P::text("authmethod", "kubeconfig, incluster or runtime").or("incluster"),
    P::text("kubeconfig", "kubeconfig file, for authmethod kubeconfig"),
    P::text("pod", "pod definition file, JSON or YAML"),
    P::flag("allowruntimeauth", "let submissions bring credentials"),
    P::flag("allowruntimecommand", "let submissions choose image and command"),
    P::flag("allowruntimeparams", "let submissions add arguments"),
    P::flag("allowruntimepod", "let submissions bring a pod"),
    P::new("deletepodonrestart", Kind::Flag, "delete a pending pod at restart").or("true"),
    P::text("streammethod", "how to talk to pods: logger or tcp").or("logger"),
    VERIFY_SIGNATURE,
];

const WORK_PYTHON: &[P] = &[
    WORK_TYPE_NAME,
    P::text("plugin", "Python module").required(),
    P::text("function", "function to call").required(),
    P::new("config", Kind::FreeMap, "settings of the plugin"),
    ENVIRONMENT,
    DIRECTORY,
    MAX_UNITS,
    TIMEOUT,
    CANCEL_GRACE,
    RELEASE_AFTER,
    CPU,
    MEMORY,
    PIDS,
];

const WORK_SIGNING: &[P] = &[
    P::text("privatekey", "private key file, PEM or OpenSSH").bare(),
    P::text("tokenexpiration", "how long a signature is valid, as in 3h30m"),
];

const WORK_VERIFICATION: &[P] = &[P::text("publickey", "public key file, PEM or one line of OpenSSH").bare()];

const TLS_SERVER_PROFILE: &[P] = &[
    P::text("name", "name of the profile").required().role(Defines(TLS_SERVER)),
    P::text("cert", "certificate file").required(),
    P::text("key", "private key file").required(),
    P::flag("requireclientcert", "refuse clients without a certificate"),
    P::text("clientcas", "file of authorities that sign client certificates"),
    P::new("pinnedclientcert", Kind::TextList, "fingerprints of allowed client certificates"),
    P::new("requirenodeid", Kind::Flag, "neighbours' certificates must name a node").or("true"),
    SKIP_NAMES,
    MIN_TLS13,
    CRL,
    BLOCKLIST,
];

const TLS_CLIENT_PROFILE: &[P] = &[
    P::text("name", "name of the profile").required().role(Defines(TLS_CLIENT)),
    P::text("cert", "certificate file; needs key"),
    P::text("key", "private key file; needs cert"),
    P::text("rootcas", "file of authorities, instead of the system's"),
    P::flag("insecureskipverify", "accept any server certificate"),
    P::new("pinnedservercert", Kind::TextList, "fingerprints of allowed server certificates"),
    SKIP_NAMES,
    MIN_TLS13,
    CRL,
    BLOCKLIST,
];

const CERT_INIT: &[P] = &[
    P::text("commonname", "name of the authority").required(),
    P::new("bits", Kind::Int, "length of the RSA key").required(),
    NOT_BEFORE,
    P::text("notafter", "end of validity, RFC 3339; in ten years if not given"),
    P::text("outcert", "certificate file to write").required(),
    P::text("outkey", "private key file to write").required(),
];

const CERT_MAKEREQ: &[P] = &[
    P::text("commonname", "name in the certificate").required(),
    P::new("bits", Kind::Int, "length of the RSA key to make, with outkey"),
    P::new("dnsname", Kind::TextList, "DNS names in the certificate"),
    P::new("ipaddress", Kind::TextList, "IP addresses in the certificate"),
    P::new("nodeid", Kind::TextList, "node IDs in the certificate"),
    P::text("outreq", "request file to write").required(),
    P::text("inkey", "private key file to use"),
    P::text("outkey", "private key file to make and write"),
];

const CERT_SIGNREQ: &[P] = &[
    P::text("req", "request file").required(),
    P::text("cacert", "certificate file of the authority").required(),
    P::text("cakey", "private key file of the authority").required(),
    NOT_BEFORE,
    NOT_AFTER,
    P::text("outcert", "certificate file to write").required(),
    P::flag("verify", "sign without asking"),
];
