import { ActionIcon, Alert, Button, Group, Menu, Select, Skeleton, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconDeviceFloppy, IconPlus, IconTrash } from '@tabler/icons-react';
import { lazy, Suspense, useMemo, useState } from 'react';
import { useLocation, useParams } from 'wouter';
import type { Schema, SchemaScope } from '../../api/json-schema';
import { isStored, objectPath, useObject, useSave, type ConfigurationObject } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { variantName, variantStart } from '../../api/schema-variants';
import { nodeTypeName, nodeTypeText, outcomeName } from '../../api/value-names';
import { mayOnNode, useCaller } from '../../api/session';
import { newPart } from '../../new-paths';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { useEditedObject, useReportedChange, type EditedObject } from '../../ui/edited-object';
import { GeneratedForm, formProblems, type Control } from '../../ui/schema-form';
import { ObjectSelect } from '../../ui/object-select';
import { Page, Panel } from '../../ui/page';
import { PendingPage } from '../../ui/pending-page';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState, Forbidden } from '../../ui/states';
import { isVersionConflict, VersionConflict } from '../../ui/version-conflict';
import './chains.css';
import {
  closesCycle,
  freeId,
  outcomes,
  withNode,
  withoutNode,
  withRelation,
  type Chain,
  type ChainNode,
  type Outcome,
} from './graph';

const ChainGraph = lazy(() => import('./chain-graph'));

const path = '/api/v1/rule-chains';
const controls: Record<string, Control> = { sink: (props) => <ObjectSelect {...props} kind="sinks" /> };
const start: Chain = {
  nodes: [
    { id: 'save', type: 'save_telemetry' },
    { id: 'alarm', type: 'alarm' },
  ],
  relations: [{ from: 'save', to: 'alarm', on: 'success' }],
};

export default function ChainPage() {
  const { t } = useLingui();
  const mayWrite = mayOnNode(useCaller(), 'operator');
  const { id: coded = newPart } = useParams<{ id: string }>();
  const id = decodeURIComponent(coded);
  if (coded === newPart) {
    return (
      <Page title={t`New chain`}>
        {mayWrite ? (
          <Editor id={null} stored={null} start={start} />
        ) : (
          <Forbidden>
            <Trans>Rule chains are written with the role operator.</Trans>
          </Forbidden>
        )}
      </Page>
    );
  }
  return <StoredChain key={id} id={id} />;
}

function StoredChain({ id }: { id: string }) {
  const chain = useObject<ConfigurationObject>(path, id);
  if (!chain.data) {
    return (
      <PendingPage
        title={id}
        query={chain}
        missing={<EmptyState title={<Trans>There is no chain with this id</Trans>} />}
      />
    );
  }
  const { data } = chain;
  return (
    <Page title={id} description={data.description as string | undefined}>
      <StoredEditor
        id={id}
        newest={data}
        read={async () => (await chain.refetch({ throwOnError: true })).data ?? data}
      />
    </Page>
  );
}

interface StoredEditorProps {
  id: string;
  newest: ConfigurationObject;
  read: () => Promise<ConfigurationObject>;
}

function chainOf(stored: ConfigurationObject): Chain {
  const { nodes, relations, first, description } = stored as unknown as Chain;
  return { nodes, relations, ...(first ? { first } : {}), ...(description ? { description } : {}) };
}

/** Edits the stored chain; changes stay, also when somebody else saves another version. */
function StoredEditor({ id, newest, read }: StoredEditorProps) {
  const edited = useEditedObject(newest);
  const { base } = edited;
  const initial = useMemo(() => chainOf(base), [base]);
  return <Editor key={base.version} id={id} stored={{ ...edited, read }} start={initial} />;
}

interface EditorProps {
  id: string | null;
  /** `null`: a new chain. */
  stored: (EditedObject<ConfigurationObject> & { read: () => Promise<ConfigurationObject> }) | null;
  start: Chain;
}

function Editor({ id, stored, start: initial }: EditorProps) {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const [chain, setChain] = useState(initial);
  const [newId, setNewId] = useState('');
  const [selected, setSelected] = useState<string | null>(null);
  const [isDeleting, setDeleting] = useState(false);
  const scope = useSchema('RuleChainInput');
  const save = useSave(path);
  // Of its own, so that a conflict stays visible until it is resolved.
  const resolution = useSave(path);
  const isDeclared = stored !== null && !isStored(stored.base);
  const isReadOnly = isDeclared || !mayOnNode(caller, 'operator');
  const chosen = id ?? newId.trim();
  const items = scope?.root.properties?.nodes?.items;
  const variants = items?.oneOf ?? [];
  const node = chain.nodes.find((each) => each.id === selected);
  const body = id === null ? { id: chosen, ...chain } : { ...chain };
  const isChanged = JSON.stringify(chain) !== JSON.stringify(initial);
  useReportedChange(isChanged, stored?.setChanged);
  const isConflict =
    stored !== null && !save.isPending && (isVersionConflict(save.error) || (isChanged && stored.isOutdated));
  const onStored = (saved: ConfigurationObject) => {
    notifications.show({ message: t`${chosen} was saved.` });
    stored?.load(saved);
    if (id === null) navigate(`/chains/${encodeURIComponent(chosen)}`);
  };
  const wrong = scope ? chain.nodes.filter((each) => nodeProblems(each, variants, scope).length > 0) : [];
  const add = (variant: Schema) => {
    const type = variantName(variant);
    const fresh = { ...(variantStart(variant) as ChainNode), id: freeId(chain, type) };
    setChain((previous) => {
      const next = { ...previous, nodes: [...previous.nodes, fresh] };
      const from = previous.nodes.find((each) => each.id === selected);
      return from ? withRelation(next, { from: from.id, to: fresh.id, on: outcomes(from.type)[0] ?? 'success' }) : next;
    });
    setSelected(fresh.id);
  };
  return (
    <Stack gap="md">
      {isDeclared && (
        <Alert color="gray" variant="light">
          <Trans>This is declared in {stored.base.declared_at ?? stored.base.origin} and is changed there.</Trans>
        </Alert>
      )}
      {id === null && (
        <TextInput
          label={t`Id`}
          required
          maw={360}
          value={newId}
          onChange={(event) => setNewId(event.currentTarget.value)}
        />
      )}
      <div className="chain-layout">
        <section className="panel">
          <div className="table-toolbar wrap">
            {!isReadOnly && (
              <Menu position="bottom-start">
                <Menu.Target>
                  <Button variant="default" leftSection={<IconPlus size={14} />} disabled={!scope}>
                    {node ? <Trans>Add a node after {node.id}</Trans> : <Trans>Add a node</Trans>}
                  </Button>
                </Menu.Target>
                <Menu.Dropdown>
                  {variants.map((variant) => (
                    <Menu.Item key={variantName(variant)} onClick={() => add(variant)}>
                      <b>{nodeTypeName(variantName(variant))}</b>
                      <Text size="xs" c="dimmed" maw={320}>
                        {nodeTypeText(variantName(variant)) ?? variant.description}
                      </Text>
                    </Menu.Item>
                  ))}
                </Menu.Dropdown>
              </Menu>
            )}
            <Text size="xs" c="dimmed">
              <Plural value={chain.nodes.length} one="# node" other="# nodes" />
              {!isReadOnly && (
                <>
                  {' · '}
                  <Trans>drag from a point below a node to another node to connect them</Trans>
                </>
              )}
            </Text>
          </div>
          <Suspense fallback={<Skeleton height={420} />}>
            <ChainGraph
              chain={chain}
              selected={selected}
              onSelect={setSelected}
              onChange={setChain}
              isReadOnly={isReadOnly}
            />
          </Suspense>
        </section>
        {node && scope ? (
          <NodePanel
            key={chain.nodes.indexOf(node)}
            node={node}
            chain={chain}
            variants={variants}
            scope={scope}
            isReadOnly={isReadOnly}
            onChange={(next) => {
              setChain(next);
              const at = chain.nodes.indexOf(node);
              setSelected(next.nodes[at]?.id ?? null);
            }}
            onDelete={() => {
              setChain(withoutNode(chain, node.id));
              setSelected(null);
            }}
          />
        ) : (
          <Panel title={<Trans>Chain</Trans>}>
            <Stack gap="sm">
              <Select
                label={t`First node`}
                disabled={isReadOnly}
                clearable
                placeholder={chain.nodes[0]?.id}
                data={chain.nodes.map((each) => each.id)}
                value={chain.first ?? null}
                onChange={(first) => setChain({ ...chain, first })}
              />
              <TextInput
                label={t`Description`}
                disabled={isReadOnly}
                value={chain.description ?? ''}
                onChange={(event) => setChain({ ...chain, description: event.currentTarget.value })}
              />
              <Select
                label={t`Edit a node`}
                placeholder={t`Choose a node, here or in the graph`}
                data={chain.nodes.map((each) => each.id)}
                value={null}
                onChange={setSelected}
              />
            </Stack>
          </Panel>
        )}
      </div>
      {isConflict ? (
        <VersionConflict
          base={initial}
          mine={chain}
          read={async () => {
            const theirs = await stored.read();
            return {
              value: chainOf(theirs),
              save: async (merged) => {
                const saving = { id: chosen, version: theirs.version, body: { ...merged } };
                onStored(await resolution.mutateAsync(saving));
              },
              load: () => stored.load(theirs),
            };
          }}
        />
      ) : (
        save.error && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {save.error.message}
          </Text>
        )
      )}
      <Group justify="space-between">
        <Group gap="xs">
          {!isReadOnly && (
            <Button
              size="sm"
              leftSection={<IconDeviceFloppy size={15} />}
              loading={save.isPending}
              disabled={chosen === '' || chain.nodes.length === 0 || wrong.length > 0 || (id !== null && !isChanged)}
              onClick={() =>
                save.mutate({ id: id ?? undefined, version: stored?.base.version, body }, { onSuccess: onStored })
              }
            >
              <Trans>Save</Trans>
            </Button>
          )}
          <ShowCall
            method={id === null ? 'POST' : 'PUT'}
            path={id === null ? path : objectPath(path, id)}
            body={body}
            ctl={`rule-chains ${id === null ? 'add' : 'set'} ${chosen || 'ID'} --from chain.json`}
          />
          {wrong.length > 0 && (
            <Text size="sm" c="var(--tg-warning)">
              <Trans>Not complete: {wrong.map((each) => each.id).join(', ')}</Trans>
            </Text>
          )}
        </Group>
        {id !== null && !isReadOnly && (
          <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
            <Trans>Delete the chain</Trans>
          </Button>
        )}
      </Group>
      {isDeleting && id !== null && (
        <ConfirmDeletion
          title={<Trans>Delete the chain {id}?</Trans>}
          action={<Trans>Delete the chain</Trans>}
          call={{ path: objectPath(path, id), ctl: `rule-chains delete ${quoted(id)}` }}
          onClose={() => setDeleting(false)}
          invalidates={[[path]]}
          message={t`${id} was deleted.`}
          onDeleted={() => navigate('/chains')}
        >
          <Text size="sm">
            <Trans>This deletes the chain with its nodes. It is rejected while a product names it.</Trans>
          </Text>
        </ConfirmDeletion>
      )}
    </Stack>
  );
}

function nodeSchema(node: ChainNode, variants: Schema[]): Schema {
  return variants.find((each) => variantName(each) === node.type) ?? {};
}

function nodeProblems({ id: _, ...node }: ChainNode, variants: Schema[], scope: SchemaScope) {
  return formProblems(node, nodeSchema({ id: '', ...node } as ChainNode, variants), scope);
}

function NodePanel({
  node,
  chain,
  variants,
  scope,
  isReadOnly,
  onChange,
  onDelete,
}: {
  node: ChainNode;
  chain: Chain;
  variants: Schema[];
  scope: SchemaScope;
  isReadOnly: boolean;
  onChange: (chain: Chain) => void;
  onDelete: () => void;
}) {
  const { t } = useLingui();
  const schema = nodeSchema(node, variants);
  const { id, type, ...values } = node;
  const isTaken = (name: string) => name !== id && chain.nodes.some((each) => each.id === name);
  const [typedId, setTypedId] = useState(id);
  const own = chain.relations.filter(({ from }) => from === id);
  const targets = chain.nodes.map((each) => each.id).filter((to) => to !== id && !closesCycle(chain, id, to));
  return (
    <Panel
      title={nodeTypeName(type)}
      actions={
        !isReadOnly && (
          <ActionIcon aria-label={t`Delete the node ${id}`} onClick={onDelete}>
            <IconTrash size={15} />
          </ActionIcon>
        )
      }
    >
      <fieldset disabled={isReadOnly} className="plain-fieldset">
        <Stack gap="sm">
          <Text size="xs" c="dimmed">
            {nodeTypeText(type) ?? schema.description?.replaceAll('`', '')}
          </Text>
          <TextInput
            label={t`Id`}
            value={typedId}
            maxLength={128}
            error={typedId === '' ? t`Required` : isTaken(typedId) ? t`Another node has this id` : false}
            onChange={(event) => {
              const next = event.currentTarget.value;
              setTypedId(next);
              if (next !== '' && !isTaken(next)) onChange(withNode(chain, id, { ...node, id: next }));
            }}
          />
          <GeneratedForm
            key={type}
            schema={schema}
            scope={scope}
            value={values}
            hidden={['id', 'type']}
            controls={controls}
            showAll
            onChange={(next) => onChange(withNode(chain, id, { ...next, id, type }))}
          />
          <Text size="sm" fw={600}>
            <Trans>Continues with</Trans>
          </Text>
          {own.map((relation) => (
            <div key={`${relation.on} ${relation.to}`} className="row">
              <span className="grow">
                {outcomeName(relation.on)} → {relation.to}
              </span>
              <ActionIcon
                size="sm"
                aria-label={t`Remove the relation to ${relation.to}`}
                onClick={() => onChange({ ...chain, relations: chain.relations.filter((each) => each !== relation) })}
              >
                <IconTrash size={14} />
              </ActionIcon>
            </div>
          ))}
          {!isReadOnly &&
            targets.length > 0 &&
            outcomes(type).map((on: Outcome) => (
              <Select
                key={`${on} ${own.length}`}
                size="xs"
                aria-label={t`Node after ${outcomeName(on)}`}
                placeholder={t`on ${outcomeName(on)}, continue with …`}
                data={targets.filter((to) => !own.some((each) => each.on === on && each.to === to))}
                value={null}
                onChange={(to) => to && onChange(withRelation(chain, { from: id, to, on }))}
              />
            ))}
        </Stack>
      </fieldset>
    </Panel>
  );
}
