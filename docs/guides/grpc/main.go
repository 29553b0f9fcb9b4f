// A chat over Triton's gRPC, streamed. It needs Triton's grpc_service.proto and model_config.proto in a folder protobuf, protoc
// with the plugins protoc-gen-go and protoc-gen-go-grpc, and grpc-go from 1.63 on. The files name no Go package, so protoc does:
//
//	go mod init chat
//	packages=Mgrpc_service.proto=./triton,Mmodel_config.proto=./triton
//	protoc -I protobuf --go_out=. --go-grpc_out=. --go_opt=$packages --go-grpc_opt=$packages grpc_service.proto model_config.proto
//	go mod tidy
//	go run . localhost:8001
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"chat/triton"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	stream, err := triton.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	body := `{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "stream": true}`
	request := &triton.ModelInferRequest{
		ModelName: "openai_bls",
		Inputs: []*triton.ModelInferRequest_InferInputTensor{{
			Name: "request", Datatype: "BYTES", Shape: []int64{1},
			Contents: &triton.InferTensorContents{BytesContents: [][]byte{[]byte(body)}},
		}},
		Parameters: map[string]*triton.InferParameter{
			"triton_enable_empty_final_response": {ParameterChoice: &triton.InferParameter_BoolParam{BoolParam: true}},
		},
	}
	if err := stream.Send(request); err != nil {
		log.Fatal(err)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		if message.ErrorMessage != "" {
			log.Fatal(message.ErrorMessage)
		}
		answer := message.InferResponse
		if len(answer.RawOutputContents) > 0 { // a length of four bytes, then a chunk as JSON
			fmt.Println(string(answer.RawOutputContents[0][4:]))
		}
		if answer.Parameters["triton_final_response"].GetBoolParam() {
			return
		}
	}
}
