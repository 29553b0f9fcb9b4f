// Event stream read line by line with the HTTP client of Java 17, as openai-java's decoder does.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;

public class Decoder {
    public static void main(String[] arguments) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
            .header("content-type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(arguments[1]))
            .build();
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        List<String> data = new ArrayList<>();
        client.send(request, HttpResponse.BodyHandlers.ofLines()).body().forEach(line -> {
            if (line.isEmpty()) {
                if (!data.isEmpty()) {
                    System.out.println(String.join("\n", data));
                }
                data.clear();
            } else if (line.startsWith("data:")) {
                data.add(line.substring(5).stripLeading());
            }
        });
    }
}
