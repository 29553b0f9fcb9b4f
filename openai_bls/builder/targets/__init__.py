"""Target of a build: where an engine lies in the model repository, and how a new one takes the place of the last.

The default engine is moved into the committed models folder by folder (`DefaultTarget`). A named engine has models of
its own, which are added and removed as a whole (`NamedTarget`)::

    default   {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/
              tensorrt_llm/1/{checkpoint/,engine/,lora/,engine.json}
              {tensorrt_llm,ensemble,tensorrt_llm_bls}/config.pbtxt
    small     tensorrt_llm_small/     config.pbtxt, 1/{model.py,engine.json,checkpoint/,engine/,lora/,tokenizer/}
              preprocessing_small/    config.pbtxt, 1/{model.py,tokenizer/}
              openai_bls/1/tokenizer_small/

A build works in `.aside-…` (default) and in `openai_bls/1/.building-<name>` (named): in version folders, since Triton
takes every folder directly in the repository for a model. A build that is killed in the middle of its moves is undone
by the next one, whatever that one does then.
"""
