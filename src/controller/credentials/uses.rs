//! Reads a credential for a use, and checks that it has the right kind and may be sent to the address.

use serde_json::Value;

use super::{
    Credential, CredentialError, CredentialKind, CredentialName, Credentials, KubernetesLogin, RegistryLogin,
    Url, UrlError,
};

/// The registry of images whose names begin with no host.
const USUAL_REGISTRY: &str = "docker.io";

impl Credentials {
    /// A login for the registry that an image comes from. Blocks on the disk.
    pub fn registry(&self, name: &CredentialName, image: &str) -> Result<RegistryLogin, CredentialError> {
        let credential = self.read(name)?;
        let address = image_address(image)
            .map_err(|error| CredentialError::Image(name.clone(), image.to_owned(), error))?;
        self.allow(name, &credential, &address)?;
        registry_login(name, credential)
    }

    /// Checks that it is a login for a registry, whatever the image. Blocks on the disk.
    pub fn check_registry(&self, name: &CredentialName) -> Result<(), CredentialError> {
        registry_login(name, self.read(name)?).map(drop)
    }

    /// The login of a group's registry, for all images of its pods. Blocks on the disk.
    pub fn group_registry(&self, name: &CredentialName) -> Result<RegistryLogin, CredentialError> {
        let credential = self.read(name)?;
        let login = registry_login(name, credential.clone())?;
        let own = Url::parse(&format!("https://{}", login.host));
        self.allow(name, &credential, &own.map_err(|error| bad(name, error))?)?;
        Ok(login)
    }

    /// Access to a cluster. If the file has `urls`, every server in its kubeconfig must lie below one of them. Blocks
    /// on the disk.
    pub fn cluster(&self, name: &CredentialName) -> Result<KubernetesLogin, CredentialError> {
        let credential = self.read(name)?;
        match &credential.kind {
            CredentialKind::Kubernetes(login) => {
                let servers = servers(login);
                if !credential.urls.is_empty() && servers.is_empty() {
                    return Err(bad(name, UrlError::Form));
                }
                for server in servers.iter().filter(|_| !credential.urls.is_empty()) {
                    self.allow(name, &credential, &Url::parse(server).map_err(|error| bad(name, error))?)?;
                }
                Ok(login.clone())
            }
            other @ (CredentialKind::Scm(_) | CredentialKind::Registry(_)) => {
                Err(CredentialError::Kind(name.clone(), other.name(), "kubernetes"))
            }
        }
    }

    /// A login for a repository. Blocks on the disk.
    pub fn repository(&self, name: &CredentialName, url: &Url) -> Result<Credential, CredentialError> {
        let credential = self.read(name)?;
        match &credential.kind {
            CredentialKind::Scm(_) => {}
            other @ (CredentialKind::Registry(_) | CredentialKind::Kubernetes(_)) => {
                return Err(CredentialError::Kind(name.clone(), other.name(), "scm"));
            }
        }
        self.allow(name, &credential, url)?;
        Ok(credential)
    }

    /// Checks that a caller over the mesh may name it. Blocks on the disk.
    pub fn check_mesh(&self, name: &CredentialName) -> Result<(), CredentialError> {
        if self.read(name)?.mesh { Ok(()) } else { Err(CredentialError::Mesh(name.clone())) }
    }

    fn allow(
        &self,
        name: &CredentialName,
        credential: &Credential,
        address: &Url,
    ) -> Result<(), CredentialError> {
        match credential.may_be_sent_to(address) {
            true => Ok(()),
            false => Err(CredentialError::Address(name.clone(), address.clone().into())),
        }
    }
}

fn registry_login(name: &CredentialName, credential: Credential) -> Result<RegistryLogin, CredentialError> {
    match credential.kind {
        CredentialKind::Registry(login) => Ok(login),
        other @ (CredentialKind::Scm(_) | CredentialKind::Kubernetes(_)) => {
            Err(CredentialError::Kind(name.clone(), other.name(), "registry"))
        }
    }
}

/// The addresses of the API servers in a kubeconfig; none if it is not valid YAML.
fn servers(login: &KubernetesLogin) -> Vec<String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let parsed = serde_saphyr::from_str_with_options::<Value>(login.kubeconfig.expose(), options);
    let parsed = parsed.unwrap_or_default();
    let clusters = parsed["clusters"].as_array().into_iter().flatten();
    clusters.filter_map(|one| Some(one["cluster"]["server"].as_str()?.to_owned())).collect()
}

fn bad(name: &CredentialName, error: UrlError) -> CredentialError {
    CredentialError::Server(name.clone(), error)
}

/// The address of an image without tag and digest: `quay.io/team/ee:1` lies at `https://quay.io/team/ee`.
fn image_address(image: &str) -> Result<Url, UrlError> {
    let image = image.split_once('@').map_or(image, |(image, _digest)| image);
    let (host, path) = match image.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        Some(_) | None => (USUAL_REGISTRY, image),
    };
    let name_at = path.rfind('/').map_or(0, |at| at + 1);
    let path = path[name_at..].find(':').map_or(path, |at| &path[..name_at + at]);
    Url::parse(&format!("https://{host}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::image_address;

    #[test]
    fn an_image_has_the_address_of_its_repository() {
        for (image, address) in [
            ("quay.io/team/ee:1", "https://quay.io/team/ee"),
            ("quay.io/ee", "https://quay.io/ee"),
            ("registry.example:5000/a/b/ee@sha256:00", "https://registry.example:5000/a/b/ee"),
            ("registry.example:5000/ee:1@sha256:00", "https://registry.example:5000/ee"),
            ("localhost/ee", "https://localhost/ee"),
            ("team/ee:1", "https://docker.io/team/ee"),
            ("ee", "https://docker.io/ee"),
        ] {
            assert_eq!(image_address(image).unwrap().as_str(), address, "{image}");
        }
        assert!(image_address("quay.io/../ee").is_err());
    }
}
