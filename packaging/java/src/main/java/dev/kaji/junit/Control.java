package dev.kaji.junit;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A process {@code kaji envtest serve}, which ends with {@link #close}, and with this process: it has the other end of its standard input.
 * {@link KajiExtension} has it for tests with JUnit.
 */
public final class Control implements AutoCloseable {
  private static final int START_SECONDS = 120;
  private static final int END_SECONDS = 60;
  /** Waits for kills take a minute at most. */
  private static final Duration REQUEST = Duration.ofSeconds(120);

  // On the loopback: no proxy is asked.
  private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).proxy(HttpClient.Builder.NO_PROXY).build();
  private final Process process;
  private final String url;
  private final String token;
  private final Cluster base;

  private Control(Process process, Map<String, Object> announced) {
    this.process = process;
    url = Json.string(announced, "control");
    token = Json.string(announced, "token");
    base = new Cluster(this, Json.object(announced.get("cluster")));
  }

  /** What to start. */
  public static final class Builder {
    private final List<String> controllers = new ArrayList<>();
    private final List<String> arguments = new ArrayList<>();
    private int nodes;
    private String binary;

    private Builder() {}

    /** Control loops of the clusters, as kube-controller-manager's {@code --controllers}. */
    public Builder controllers(String... names) {
      controllers.addAll(List.of(names));
      return this;
    }

    /** Simulated nodes. */
    public Builder nodes(int count) {
      nodes = count;
      return this;
    }

    /** The program. Without it: KAJI of the environment, else {@code kaji} of the PATH. */
    public Builder binary(Path program) {
      binary = program.toString();
      return this;
    }

    /** More flags of {@code kaji envtest serve}. */
    public Builder arguments(String... flags) {
      arguments.addAll(List.of(flags));
      return this;
    }

    /** Starts it. */
    public Control start() {
      List<String> command = new ArrayList<>();
      command.add(binary == null ? program(System.getenv("KAJI"), System.getenv("PATH")) : binary);
      command.addAll(List.of("envtest", "serve", "--until-stdin-closes", "--nodes=" + nodes));
      if (!controllers.isEmpty()) {
        command.add("--controllers=" + String.join(",", controllers));
      }
      command.addAll(arguments);
      return Control.start(command);
    }
  }

  /** What to start, and {@link Builder#start}. */
  public static Builder with() {
    return new Builder();
  }

  /** The binary: KAJI, else that of the PATH. */
  static String program(String kaji, String path) {
    if (kaji != null && !kaji.isEmpty()) {
      return kaji;
    }
    for (String folder : (path == null ? "" : path).split(File.pathSeparator)) {
      try {
        Path candidate = Path.of(folder, "kaji");
        if (!folder.isEmpty() && Files.isRegularFile(candidate) && Files.isExecutable(candidate)) {
          return candidate.toString();
        }
      } catch (InvalidPathException notAFolder) {
        continue;
      }
    }
    throw new ControlException("there is no kaji: install it so that it is on the PATH, or set KAJI to the binary");
  }

  private static Control start(List<String> command) {
    Process process;
    try {
      process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    } catch (IOException error) {
      throw new ControlException(command.get(0) + " cannot be started (it is KAJI's value, or on the PATH): " + error.getMessage(), error);
    }
    try {
      return new Control(process, Json.object(Json.parse(announcement(process))));
    } catch (RuntimeException error) {
      process.destroyForcibly();
      throw error;
    }
  }

  private static String announcement(Process process) {
    // A reader that has to be given up on holds up nothing: it is a daemon.
    CompletableFuture<String> line = new CompletableFuture<>();
    Thread reader = new Thread(() -> {
      try (BufferedReader output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
        line.complete(output.readLine());
        // What may come after it is read, too: a full pipe would hold the program up.
        while (output.readLine() != null) {
          continue;
        }
      } catch (IOException error) {
        line.completeExceptionally(error);
      }
    }, "kaji-envtest");
    reader.setDaemon(true);
    reader.start();
    try {
      String announced = line.get(START_SECONDS, TimeUnit.SECONDS);
      if (announced == null) {
        throw new ControlException("kaji envtest serve ended with " + process.waitFor() + "; its errors are on the standard error");
      }
      return announced;
    } catch (TimeoutException error) {
      throw new ControlException("kaji envtest serve is not ready after " + START_SECONDS + " s", error);
    } catch (ExecutionException error) {
      throw new ControlException("what kaji envtest serve prints cannot be read: " + error.getCause(), error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new ControlException("interrupted while kaji envtest serve starts", error);
    }
  }

  /** The cluster that is set up once, and forked. */
  public Cluster base() {
    return base;
  }

  /** Where the control is. */
  public String url() {
    return url;
  }

  /** Sends a request with a body of JSON or YAML, and returns the answer. */
  Map<String, Object> request(String method, String path, String body) {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(url + "/v1/" + path))
            .timeout(REQUEST)
            .header("Authorization", "Bearer " + token)
            .method(method, HttpRequest.BodyPublishers.ofString(body))
            .build();
    HttpResponse<String> answer;
    try {
      answer = client.send(request, HttpResponse.BodyHandlers.ofString());
    } catch (IOException error) {
      String ended = process.isAlive() ? "" : ": kaji envtest serve has ended with " + process.exitValue();
      throw new ControlException(method + " " + path + " failed" + ended + ": " + error, error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new ControlException("interrupted at " + method + " " + path, error);
    }
    Map<String, Object> value = Json.object(Json.parse(answer.body()));
    if (answer.statusCode() >= 300) {
      throw new ControlException(Json.string(value, "error"));
    }
    return value;
  }

  /** Ends the process and all clusters. */
  @Override
  public void close() {
    try {
      process.getOutputStream().close();
      if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
        process.destroyForcibly();
        throw new ControlException("kaji envtest serve does not end, and was killed after " + END_SECONDS + " s");
      }
    } catch (IOException error) {
      process.destroyForcibly();
      throw new ControlException("kaji envtest serve cannot be ended: " + error.getMessage(), error);
    } catch (InterruptedException error) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
      throw new ControlException("interrupted while kaji envtest serve ends", error);
    }
    if (process.exitValue() != 0) {
      throw new ControlException("kaji envtest serve ended with " + process.exitValue());
    }
  }
}
