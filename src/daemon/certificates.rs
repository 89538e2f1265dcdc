//! `cert-init`, `cert-makereq` and `cert-signreq`: commands of the configuration that make a certificate
//! instead of running a node. Only translates them for the room `tls`.

use std::process::ExitCode;

use crate::config::Config;
use crate::config::directives::certificates::CertSignRequest;
use crate::tls::Names;
use crate::tls::commands::{self, CommandError};
use crate::tls::make::{Dates, KeyKind};

/// Carries out the command of a configuration that has one, and prints a failure on standard error. `ask` asks a person
/// whether to sign; its text is the setting to give if nobody can be asked.
pub(super) fn run(config: &Config, ask: fn(&Names, &str) -> bool) -> Option<ExitCode> {
    let done = if let Some(init) = &config.cert_init {
        let dates = Dates { not_before: init.not_before, not_after: init.not_after };
        let kind = KeyKind::Rsa(init.bits);
        commands::init(&init.common_name, kind, dates, &init.out_cert, &init.out_key)
    } else if let Some(request) = &config.cert_make_request {
        commands::make_request(&request.names, &request.key, &request.out)
    } else {
        sign_request(config.cert_sign_request.as_ref()?, ask)
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meshd: {error}");
            ExitCode::FAILURE
        }
    })
}

fn sign_request(request: &CertSignRequest, ask: fn(&Names, &str) -> bool) -> Result<(), CommandError> {
    let authority = (request.ca_cert.as_path(), request.ca_key.as_path());
    let dates = Dates { not_before: request.not_before, not_after: request.not_after };
    commands::sign_request(&request.request, authority, dates, &request.out_cert, |names| {
        request.verify || ask(names, "verify=true")
    })
}
