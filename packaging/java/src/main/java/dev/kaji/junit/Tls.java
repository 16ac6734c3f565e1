package dev.kaji.junit;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.HexFormat;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** PEM for the JDK's TLS, which reads neither PEM nor the form that keys on curves have in kubeconfigs. */
final class Tls {
  /** Version 0, and the algorithm: a key on the curve P-256. */
  private static final byte[] HEAD = HexFormat.of().parseHex("020100301306072a8648ce3d020106082a8648ce3d030107");

  private static final String SEC1 = "-----BEGIN EC PRIVATE KEY-----";

  private Tls() {}

  /** Trusts the authority alone, and has the client's certificate unless the key is null. */
  static SSLContext context(String authority, String certificate, String key) {
    try {
      KeyStore trusted = store();
      trusted.setCertificateEntry("ca", certificate(authority));
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(trusted);
      KeyManager[] keys = key == null ? null : keys(certificate, key);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(keys, trust.getTrustManagers(), null);
      return context;
    } catch (GeneralSecurityException | IOException | IllegalArgumentException error) {
      throw new ControlException("the certificates of a kubeconfig of kaji cannot be used: " + error.getMessage(), error);
    }
  }

  private static KeyStore store() throws GeneralSecurityException, IOException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    return store;
  }

  private static KeyManager[] keys(String certificate, String key) throws GeneralSecurityException, IOException {
    KeyStore own = store();
    own.setKeyEntry("client", key(key), new char[0], new Certificate[] {certificate(certificate)});
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(own, new char[0]);
    return keys.getKeyManagers();
  }

  private static Certificate certificate(String pem) throws GeneralSecurityException {
    return CertificateFactory.getInstance("X.509").generateCertificate(new ByteArrayInputStream(pem.getBytes(StandardCharsets.US_ASCII)));
  }

  private static PrivateKey key(String pem) throws GeneralSecurityException {
    byte[] der = Base64.getMimeDecoder().decode(pem.replaceAll("-----[A-Z0-9 ]+-----", ""));
    byte[] pkcs8 = pem.contains(SEC1) ? element(0x30, HEAD, element(0x04, der)) : der;
    return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(pkcs8));
  }

  /** An element of DER. */
  private static byte[] element(int tag, byte[]... parts) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    for (byte[] part : parts) {
      content.writeBytes(part);
    }
    int length = content.size();
    ByteArrayOutputStream element = new ByteArrayOutputStream();
    element.write(tag);
    // A long length has as few bytes as it needs, and their number before it.
    if (length >= 0x100) {
      element.write(0x82);
      element.write(length >> 8);
    } else if (length >= 0x80) {
      element.write(0x81);
    }
    element.write(length);
    element.writeBytes(content.toByteArray());
    return element.toByteArray();
  }
}
