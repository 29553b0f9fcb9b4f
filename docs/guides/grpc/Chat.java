// A chat over Triton's gRPC, streamed. It needs Triton's grpc_service.proto and model_config.proto in a folder protobuf. On Debian:
//
//   apt-get install openjdk-17-jdk-headless protobuf-compiler protobuf-compiler-grpc-java-plugin \
//     libgrpc-java libprotobuf-java libguava-java libnetty-java libperfmark-java libgeronimo-annotation-1.3-spec-java
//   mkdir -p generated classes
//   protoc -I protobuf --plugin=protoc-gen-grpc-java=/usr/bin/grpc_java_plugin --java_out=generated --grpc-java_out=generated \
//     grpc_service.proto model_config.proto
//   javac -cp '/usr/share/java/*' -d classes generated/inference/*.java Chat.java
//   java -cp '/usr/share/java/*:classes' Chat localhost:8001
import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.InferParameter;
import inference.GrpcService.InferTensorContents;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelStreamInferResponse;
import com.google.protobuf.ByteString;
import io.grpc.ManagedChannelBuilder;
import io.grpc.stub.StreamObserver;
import java.util.concurrent.CountDownLatch;

public class Chat {
    public static void main(String[] args) throws InterruptedException {
        var channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
        var done = new CountDownLatch(1);
        var requests = GRPCInferenceServiceGrpc.newStub(channel).modelStreamInfer(new StreamObserver<ModelStreamInferResponse>() {
            public void onNext(ModelStreamInferResponse message) {
                var answer = message.getInferResponse();
                var last = answer.getParametersOrDefault("triton_final_response", InferParameter.getDefaultInstance());
                if (answer.getRawOutputContentsCount() > 0) // a length of four bytes, then a chunk as JSON
                    System.out.println(answer.getRawOutputContents(0).substring(4).toStringUtf8());
                if (!message.getErrorMessage().isEmpty())
                    System.err.println(message.getErrorMessage());
                if (!message.getErrorMessage().isEmpty() || last.getBoolParam())
                    done.countDown();
            }
            public void onError(Throwable error) { error.printStackTrace(); done.countDown(); }
            public void onCompleted() { done.countDown(); }
        });
        var body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0, \"stream\": true}";
        requests.onNext(ModelInferRequest.newBuilder()
            .setModelName("openai_bls")
            .addInputs(ModelInferRequest.InferInputTensor.newBuilder().setName("request").setDatatype("BYTES").addShape(1)
                .setContents(InferTensorContents.newBuilder().addBytesContents(ByteString.copyFromUtf8(body))))
            .putParameters("triton_enable_empty_final_response", InferParameter.newBuilder().setBoolParam(true).build())
            .build());
        done.await();
        requests.onCompleted();
        channel.shutdown();
    }
}
