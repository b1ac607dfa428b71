import { Alert, Button, Stack, Text, TextInput, Title } from '@mantine/core';
import { useDocumentTitle } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { ApiError, api, unwrap } from '../../api/client';
import { logIn } from '../../api/session';
import { NewPasswordFields } from './new-password-fields';
import { codeOf, isGoodPassword, isUsername, minPasswordLength } from './registration';

/** Creates the own login with the code of an invitation; it needs no session. Afterwards the person is logged in. */
export default function RegisterPage() {
  const { t } = useLingui();
  const [code, setCode] = useState(() => codeOf(location.hash));
  const [username, setUsername] = useState('');
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const [again, setAgain] = useState('');
  const [namespace, setNamespace] = useState('');
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [isPending, setPending] = useState(false);
  useDocumentTitle(`${t`Register`} · Tidegate`);

  const isComplete =
    code.trim() !== '' && isUsername(username) && isGoodPassword(password) && password === again && !isPending;
  // The name of a namespace is asked for only where the one that the node chooses is in use.
  const asksNamespace = namespace !== '' || (problem?.status === 409 && problem.message.includes('namespace'));
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setPending(true);
    setProblem(null);
    try {
      const body = {
        code: code.trim(),
        username,
        password,
        ...(email.trim() ? { email: email.trim() } : {}),
        ...(namespace ? { namespace } : {}),
      };
      await unwrap(api.POST('/api/v1/register', { body }));
      await logIn(username, password);
    } catch (error) {
      setProblem(error instanceof ApiError ? error : new ApiError(0, (error as Error).message));
      setPending(false);
    }
  };

  return (
    <main className="login">
      <form className="panel" onSubmit={(event) => void submit(event)}>
        <Stack className="panel-body" gap="sm">
          <div className="row">
            <img src="/favicon.svg" width={28} height={28} alt="" />
            <Title order={1}>
              <Trans>Register</Trans>
            </Title>
          </div>
          <Text size="sm" c="dimmed">
            <Trans>With the code of an invitation you create your own login.</Trans>
          </Text>
          <TextInput
            label={t`Code of the invitation`}
            required
            autoComplete="off"
            spellCheck={false}
            maxLength={512}
            autoFocus={code === ''}
            value={code}
            onChange={(event) => setCode(event.currentTarget.value)}
          />
          <TextInput
            label={t`Name`}
            description={t`3 to 30 letters, digits and _.`}
            autoComplete="username"
            required
            autoFocus={code !== ''}
            maxLength={30}
            value={username}
            error={username !== '' && !isUsername(username) ? t`3 to 30 letters, digits and _.` : undefined}
            onChange={(event) => setUsername(event.currentTarget.value)}
          />
          <TextInput
            label={t`E-mail`}
            description={t`Optional. The node sends no mail to it.`}
            type="email"
            autoComplete="email"
            maxLength={254}
            value={email}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <NewPasswordFields
            kind="first"
            description={t`At least ${minPasswordLength} characters, with an upper-case letter, a lower-case letter and a digit.`}
            password={password}
            again={again}
            problem={isGoodPassword(password) ? undefined : t`Too simple`}
            onChange={(first, second) => {
              setPassword(first);
              setAgain(second);
            }}
          />
          {asksNamespace && (
            <TextInput
              label={t`Namespace`}
              description={t`Id of your new namespace.`}
              maxLength={64}
              value={namespace}
              onChange={(event) => setNamespace(event.currentTarget.value)}
            />
          )}
          {problem && (
            <Alert color="red" variant="light" role="alert">
              {problem.message}
            </Alert>
          )}
          <Button type="submit" size="sm" loading={isPending} disabled={!isComplete} fullWidth>
            <Trans>Register</Trans>
          </Button>
          <Text size="sm" ta="center">
            <Link href="/" className="link">
              <Trans>I have a login already</Trans>
            </Link>
          </Text>
        </Stack>
      </form>
    </main>
  );
}
