import { Alert, Button, PasswordInput, Stack, Text, TextInput, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { logIn, LoginError } from '../../api/session';

export function LoginPage({ isExpired }: { isExpired: boolean }) {
  const { t } = useLingui();
  const [username, setUsername] = useState('');
  const [password, setPassword] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setPending(true);
    setProblem(null);
    try {
      await logIn(username, password);
    } catch (error) {
      setProblem(error instanceof LoginError ? error.message : t`The node does not answer.`);
      setPending(false);
    }
  };

  return (
    <main className="login">
      <form className="panel" onSubmit={(event) => void submit(event)}>
        <Stack className="panel-body" gap="sm">
          <div className="row">
            <img src="/favicon.svg" width={28} height={28} alt="" />
            <Title order={1}>Tidegate</Title>
          </div>
          {isExpired && (
            <Alert color="yellow" variant="light">
              <Trans>The session has ended. Log in to continue where you were.</Trans>
            </Alert>
          )}
          <TextInput
            label={t`Name`}
            autoComplete="username"
            required
            autoFocus
            value={username}
            onChange={(event) => setUsername(event.currentTarget.value)}
          />
          <PasswordInput
            label={t`Password`}
            autoComplete="current-password"
            required
            value={password}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          {problem && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {problem}
            </Text>
          )}
          <Button type="submit" size="sm" loading={isPending} fullWidth>
            <Trans>Log in</Trans>
          </Button>
          <Text size="xs" c="dimmed">
            <Trans>
              The first start of a node prints the password of the operator admin. Another one:{' '}
              <code>tidegate ctl operators set admin --ask-password</code>
            </Trans>
          </Text>
        </Stack>
      </form>
    </main>
  );
}
